-- a b
with q as (select a.id, b.v from a, b where a.id = b.id) select * from q

-- a b|q c
with q as (select a.id, b.v from a, b where a.id = b.id) select q.id, c.w from q, c where q.id = c.id

-- q b|r c
with q as (select id from a), r as (select q.id, b.v from q, b where q.id = b.id) select r.v, c.w from r join c on r.id = c.id

-- a b
with a as (select id, k from a where id > 1) select a.id, b.v from a, b where a.k = b.k

-- q b
with q(one, two) as (select id, k from a) select one, v from q, b where q.two = b.k

-- q b
with q as (with q as (select id from a) select id from q where id > 1) select q.id, b.v from q, b where q.id = b.id

-- q r
with q as (select id from a), r as (with q as (select id + 1 as id from q) select id from q) select q.id, r.id from q, r where q.id = r.id

-- a b|q c
select q.id, c.w from (select a.id from a, b where a.id = b.id) q, c where q.id = c.id

-- a b
select d.t from (select a.id, b.id, a.s as t from a, b where a.k = b.k) d

-- a b
select d.t from (select a.id as i, b.id as j, a.s as t from a, b where a.k = b.k) d where d.i = d.j

-- a b
select `(id + id)` from (select a.id + b.id from a, b where a.k = b.k)

-- a b
select a.id + b.id from a, b where a.k = b.k

-- a b
select id from (select a.id from a, b where a.k = b.k) where id > 1

-- d b
select d.one, b.v from (select id, k from a) as d(one, two), b where d.two = b.k

-- o b
select o.one, b.v from a as o(one, two, t3, t4, t5, t6, t7), b where o.two = b.k

-- a b|c a
select a.id from a, b where a.id = b.id union all select c.id from c, a where c.id = a.id

-- a b|c a
select id from (select a.id from a, b where a.id = b.id union select c.id from c, a where c.k = a.k) order by id limit 3

-- a b
(select a.id from a, b where a.id = b.id) except select id from c

-- a b
select a.id from a, b where a.id = b.id order by b.v desc, a.id, a.k limit 2

-- a b+
select distinct a.id from a, b where a.k = b.k order by a.id

-- a b+
select b.id, count(*) n, sum(a.k) from a, b where a.id = b.id group by b.id having count(*) > 1 order by b.id

-- a b
select a.id, b.id, sum(b.k) over (partition by a.s order by a.id, b.id, b.k) from a, b where a.k = b.k

-- a b+
select a.k, b.id, grouping(a.k) from a, b where a.id = b.id group by cube (a.k, b.id)

-- x b
select x.id as y, y + 1 as z from a x, b where x.id = b.id

-- a b
select a.id b, b.id a from a, b where a.id = b.id order by 1, 2

-- none
select max(b.id) as b from a, b where a.k = b.k group by a.k having max(b.id) > 1
