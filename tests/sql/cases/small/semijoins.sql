-- a b +c
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k)

-- a b -c
select a.id, b.s from a, b where a.id = b.id and not exists (select * from c where c.k = a.k)

-- a b +c
select a.id, b.k from a, b where a.id = b.id and exists (select * from c where c.id = a.id and c.k <> b.k)

-- a b -c
select a.id, b.k from a, b where a.id = b.id and not exists (select * from c where c.id = a.id and c.k <> b.k)

-- a b -x
select a.id, b.k from a, b where a.id = b.id and not exists (select * from b x where x.id = b.id and x.k > b.k and x.v < a.x)

-- a b -c
select a.id from a, b where a.s = b.s and a.id not in (select id from c where id is not null and w <> 'q')

-- a b -c
select a.id, a.k from a, b where a.s = b.s and a.k not in (select k from c where k > 1000)

-- a b -c
select a.id, a.k from a, b where a.s = b.s and not a.id in (select id from c where id < 3)

-- a b
select a.id from a, b where a.id = b.id and (a.k, b.k) not in (select k, id from c)

-- a b
select a.id from a, b where a.id = b.id and a.k not in (select k from c where c.id = b.id)

-- a b +c
select a.id from a, b where a.id = b.id and a.k in (select k from c where c.id = b.id and c.st.f = 1)

-- a b -c
select * from a join b on a.k = b.k left anti join c on c.id = a.id and c.k <> b.k where b.v > 1

-- a b -c
select * from a join b on a.k = b.k left anti join c using (id)

-- a b -c +q
select a.id, b.id from a join b on a.k = b.k anti join c on c.id = a.id and c.k = b.k semi join (select id as i from c) q on q.i = b.id and a.id < 3

-- a b +c
select a.id from a, b where a.id = b.id and (exists (select 1 from c where c.k = a.k) or a.id = 1)

-- a b
select a.id, exists (select 1 from c where c.k = a.k) as e from a, b where a.id = b.id

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c)

-- a b
select a.id from a, b where a.id = b.id and exists (select count(*) from c where c.k = a.k)

-- a b
select a.id from a, b where a.id = b.id and exists (select explode(arr) from c where c.k = a.k)

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k limit 1)

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k < a.k)

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k union all select 1 from c where c.id = a.id)

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k and rand() >= 0)

-- a b
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.id = a.x)

-- c x+|a b +subquery
select a.id from a, b where a.id = b.id and exists (select * from c, b x where c.id = x.id and x.k = a.k and c.id = b.id)

-- c x+|a b -subquery
select a.id from a, b where a.id = b.id and not exists (select c.k from c left join b x on c.id = x.id where x.k = a.k)

-- c +x+|a b +subquery
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k and exists (select 1 from b x where x.id = c.id))

-- a b +c -c_+
with q as (select a.id, b.s from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k) and not exists (select 1 from c where c.k = b.k and c.id = 1)) select s, count(*) from q group by s

-- a b +q
with q as (select id i, max(k) k from c group by id) select a.id from a, b where a.id = b.id and exists (select 1 from q where q.i = a.id and q.k > 10)

-- a b -x
select a.id, a.k from a, b where a.id = b.id and not exists (select 1 from a x where x.id = a.id and x.k <> a.k)

-- a b +b_
select a.id, b.k from a, b where a.id = b.id and exists (select 1 from b where b.k = a.k and v > 1)

-- a b +q
select a.id, b.id from a, b where a.id = b.id and exists (select 1 from b q where q.v = a.x and q.n = a.n and q.d >= a.d)

-- a b -q
select a.id, b.id from a, b where a.k = b.k and not exists (select 1 from b q where q.s = a.s and (q.id = a.id or q.v > a.x))

-- c d+|a b -subquery
select a.id, b.id from a join b on a.id = b.id where a.k not in (select c.k from c, b d where c.k between 0 and null)

-- a b -c
select a.id, b.id from a join b on a.id = b.id where a.k not in (select c.k from c where c.k between 0 and null)

-- a +c
select a.id, a.s from a where exists (select 1 from c where c.k = a.k)

-- a -c
select * from a where not exists (select 1 from c where c.k = a.k and c.id > a.id) and a.s <> 'x'

-- a -c
select a.id from a where a.k not in (select k from c)

-- a +c -b
select count(*) from a where a.k in (select k from c) and not exists (select 1 from b where b.id = a.id)

-- a +c
select a.* from a left semi join c on a.k = c.k

-- a -c
select a.s, a.k + 1 z from a left anti join c using (k) order by 1, 2

-- a +c
select a.id from a where exists (select 1 from c where c.k = a.k) or a.id = 2

-- none
select a.id from a where exists (select 1 from c where c.k > a.k)

-- none
select a.id from a where exists (select 1 from c where c.k = a.k) and a.id > (select min(b.id) from b where b.id = a.id)

-- a +c
select a.id from a where exists (select 1 from c where c.k = a.k) and a.id > (select min(b.id) from b)

-- b +c|a ?x
select a.id, x.id from a left join (select b.id from b where b.id in (select id from c)) x on a.id = x.id

-- a +b
with w as (select id from a where id in (select id from b)) select x.id from w x cross join w y

-- a +a_
select a.id from a where a.k in (select k from a where id > 1)
