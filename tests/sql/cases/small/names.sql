-- ev a
select payload.a.id, a.k from (select id, named_struct('a', named_struct('id', 5, 'x', k), 'id', 3) payload from b) ev join a on ev.id = a.id

-- ev a
select payload.a.*, a.id as own from (select id, named_struct('a', named_struct('id', 5, 'x', k), 'id', 3) payload from b) ev join a on ev.id = a.id where payload.a.id = 5 and a.id > 1

-- a b a2
select a.id, b.v from a join b on a.id = b.id join (select named_struct('id', 1, 'f', 2) as b2, 2 as id) a2 on a2.id = b.id and b2.id = 1

-- a b
select a.k as b__id, b.id, b__id + 1 as z from a join b on a.id = b.id

-- a b
select a.k as __mr0_0_id, b.id, __mr0_0_id + 1 as z from a join b on a.id = b.id

-- a b|q a
select * from (select a.id, b.id as id2, b.id as k from a join b on a.id = b.id) q join a using (k)

-- q b
select * from (select 1 as id, 2 as k, 3 as id) q join b using (k)

-- a c ?b
select * from a left join b using (id) join c using (id)

-- a c ?b
select b.id, c.*, id from a left join b using (id) join c using (id) where c.id > 0

-- a b
select id, b.id, c.id from a join b using (id) full join c using (id)

-- c a b
select * from c join (a join b using (id)) using (id)

-- none
select * from c join (a left join b using (id)) using (id)

-- none
select * from a join b on a.id = b.id pivot (sum(v) for flag in (true, false))

-- a b
select * from (select a.id, a.k, b.s, v from a join b on a.id = b.id) pivot (sum(k) for s in ('x', 'y'))

-- a b
select * from (select a.id, a.k, b.id as i2, b.k + 1L as v from a join b on a.id = b.id) unpivot (val for nm in (k, v))

-- a #1
select * from a natural join (select k, id from b)

-- c q|#0 #1
select * from (select s, id from c join (select id as i, s from a) q on c.id = q.i) natural join (select id, s from b)

-- a b|q c
select q.id, (select max(b.v) from b where b.id = q.id) from (select a.id, b.s from a join b on a.id = b.id) q join c on q.id = c.id

-- a b
select q.id, z.m from (select a.id, b.v from a join b on a.id = b.id) q join lateral (select max(st.f) as m from c where c.id = q.id) z

-- a b
select a.id, l.m from a join b on a.id = b.id, lateral (select max(st.f) m from c where c.id = a.id) l

-- a b
select a.id, e from a join b on a.id = b.id lateral view explode(array(a.k, b.k)) t as e where e > 15

-- f b
select f.id, cast(far as string) as far from (select id, cast('12000-01-01' as date) as far from a) f join b on f.id = b.id where far > date '9999-12-31'

-- a b
select a.id from a join b on a.id = b.id where a.d < date '+12000-01-01' and b.k > 10

-- a b
select a.id from a join b on a.id = b.id where cast('-0044-03-15' as date) < a.d

-- a b|q c
-- a comment first
with q as (select a.id from a join b on a.id = b.id) select q.id from q join c on q.id = c.id

-- none
from a join b on a.id = b.id |> where a.k > 10 |> select a.k

-- none
/* a comment */ with a as (select id + 1 as id from b) from a |> where id > 2

-- none
with recursive r(n) as (select 1 union all select r.n + 1 from r join b on r.n = b.id where r.n < 4) select a.id, r.n from r join a on r.n = a.id

-- a b|q a
with a as (select id, v from b where id < 3), q as (with a as (select id from c) select a.id from a join b on a.id = b.id) select q.id, a.v from q join a on a.id = q.id

-- a b
with a as (with a as (select * from a where id > 1) select * from a) select a.id, b.v from a join b on a.id = b.id

-- none
select merge, insert from (select a.id merge, b.v insert from a join b on a.id = b.id) update join c on update.merge = c.id

-- a b
select a.id, current_date() > a.d as past from a join b on a.id = b.id where a.d <= current_date()

-- a b
select a.id, b.v from a join b on a.id = b.id and a.d <= current_date and b.d < now()

-- a b
select a.id, a.d < localtimestamp() as x, current_timestamp() = now() as y from a join b on a.id = b.id

-- a c
select /*+ broadcast(b) */ a.id, b.v from a join b on a.id = b.id join c on c.id = a.id

-- a b
select /*+ repartition(3, a.id) */ a.id, b.v from a join b on a.id = b.id

-- a b
select /*+ merge(c), coalesce(1) */ a.id, b.v, c.w from a join b on a.id = b.id join c on c.id = a.id

-- a b c
select a.k from (a join b on a.id = b.id) join c on c.st.f = b.id

-- c q b
select c.st.g, c.st.*, q.st from c join (select id, s as st from a) q on q.id = c.id join b on b.id = c.id

-- c a b
select c.*, st.g from c join a on a.id = c.id join b on b.id = a.id where c.st.f = 1

-- a b
select a.k id, row_number() over (order by a.k, b.v) rn from a join b on a.id = b.id qualify rn > 1

-- a b+
select k from (select a.k from a join b on a.id = b.id) group by k having k > 10

-- a c+
select s as w, count(*) from (select a.s, c.w as other from a join c on a.id = c.id) group by w

-- a b
select a.k * 2 as k from a join b on a.id = b.id order by k

-- a b+
select max(a.k) as k from a join b on a.id = b.id group by a.id having k > 10

-- a b
select exists(array(1, 2), k -> k = a.id) from a join b on a.id = b.id

-- a b
select a.id, `a`.`k` as `some k`, `some k` + 1 from a join b on a.id = b.id

-- a b
select a.* except (id, s), b.v from a join b on a.id = b.id

-- q r
select * except (v) from (select * from a) q join (select id, v from b) r using (id)

-- q b
select q.id from (select id, k, s from a) q(id, kk, ss) join b on q.id = b.id where kk > 10

-- t b
select t.x, b.v from (select id, k from a) as t(x, y) join b on t.x = b.id and t.y > 10

-- b c
select a.id from a where exists (select 1 from b join c on b.id = c.id and c.st.f = a.id)

-- b c+
select a.id from a where exists (select 1 from b join c on b.id = c.id where a.k = 10 and x = 1.5)

-- a b|q c
select * from (select a.id + 1, b.v from a join b on a.id = b.id) q join c on c.id = q.`(id + 1)`

-- a b|b c
select a.id+1 from a join b on a.id = b.id union all select b.id * 2 from b join c on b.id = c.id

-- a q
select id, (select id from b where b.id = a.id limit 1) as id2 from a join (select id as z from c) q on q.z = a.id

-- a b #2
select a.id from a join b on a.id = b.id cross join (select max(id) as m from c) where a.id < m

-- a b+
select cast(a.id as string), a.k from a join b on a.id = b.id group by a.id, a.k order by cast(a.id as string), k

-- none
table a

-- none
select named_struct('x', a.id).x, (a.id, b.k) = (a.id, a.k) from a join b on a.id = b.id

-- a b
select count(distinct a.id, b.v), collect_list(struct(b.s)) from a join b on a.id = b.id where a.id = 1

-- a b
select a.id from (a join b on a.id = b.id) left join c on c.id = a.id and a.id in (select st.f from c)

-- a q c
select a.id, c.w from a join ((select id, s from b) q join c on q.id = c.id) on a.id = q.id

-- none
select a.id, e.s from a join ((select id, s from b) q join (select id as i from c) c on q.id = c.i) e on a.id = e.id

-- x c
select c.id, x.v from ((select id, v from b) x) join c on x.id = c.id

-- q a
select a.id, q.id from ((select id from b)) q join a on a.id = q.id

-- none
select * from (((select id, v from b) x) left join c on x.id = c.id) join a on a.id = x.id

-- a b q z
select q.st.g, b.id from a join ((select id, s from b) b join c q on b.id = q.id) on b.id = a.id cross join (select named_struct('id', 7) as b) z

-- none
select a.s, count(*) n from c join (a join b on a.id = b.id) on c.k = a.k unpivot (val for nm in (a.id, b.id)) group by a.s

-- a b
select a.id, row_number() over w r, max(b.v) over w m from a join b on a.id = b.id window w as (partition by b.k order by a.id, a.k, b.v)

-- a b
select a.id, f, y from a join b on a.id = b.id lateral view inline(array(struct(a.id + 1 as c, b.k as d), struct(b.id as c, b.k as d))) t as f, y where y > 15

-- a b
select a.id, f, p, e from a join b on a.id = b.id lateral view stack(2, a.id, b.id) s as f lateral view outer posexplode(array(a.k, b.k)) t as p, e
