-- a b
select * from (select a.id, b.k from a, b where a.id = b.id) pivot (count(*) for id in (1, 2))

-- none
select * from (table a) x

-- a c
select a.id, e from a, c lateral view explode(arr) t as e where a.id = c.id

-- none
select a.id, q.m from a, lateral (select max(b.k) m from b where b.id = a.id) q

-- none
select a.id, r.id from a, range(3) r where a.id = r.id

-- a b
select a.id, b.id, r.id from a, b, range(3) r where a.id = r.id and b.id = a.id

-- none
select a.id, v.y from a, (values (1, 'x'), (2, 'y')) as v(x, y) where a.id = v.x

-- none
select a.id, b.v from a tablesample (100 percent), b where a.id = b.id

-- b c
select a.id, b.v from a tablesample (100 percent), b, c where a.id = b.id and c.k = b.k

-- none
from a, b select a.id where a.id = b.id

-- none
values (1), (2)

-- none
table a

-- none
from a |> where id = 1 |> select id

-- a b
select * except (v) from a join b on a.id = b.id

-- none
select struct(a.*) from a, b where a.id = b.id

-- none
select a.id, q.r from a, (select id, rand(1) * 0 as r from b) q where a.id = q.id

-- none
select /*+ broadcast(b), repartition(2) */ a.id from a, b where a.id = b.id

-- a b
select a.id -- from b
, b.v /* where */ from a, b
-- and
where a.id = b.id -- {end}

-- a b
select a.id from a, b where a.id = b.id;

-- none
select 1

-- a ?b
select q.two from (select struct(a.id, b.id) as two, a.k from a left join b on a.id = b.id) q join c on c.k = q.k

-- none
select 1 -- more \
 , 2 as x

-- a b
select a.id, b.v from a, b where a.id = b.id ; -- done

-- a b
select a.id, b.v from a, b where a.id = b.id
;
/* {x} */ ;;

-- none
table a ; -- done

-- none
with e as (select a.id as i from a join b on a.id = b.id where a.id = 1 and b.id = 2) select e.i from e left join c on e.i = c.id and (e.i, c.k) in (select id, k from b)
