-- beside itself
with w as ({joined}) select v.k, u.m from w v join w u on v.k = u.k + 10 where u.n > 0

-- through another
with w as ({joined}), z as (select k, row_number() over (order by k, s) r from w where n < 9)
select v.k from z v left join z u on v.r = u.r + 1

-- in a subquery
with w as ({joined}) select k from w where n = (select max(n) from w) and k > 5

-- by another block
with w as ({joined}) select c.id, w.n from c join w on c.k = w.k
union all select k, m from w where s in (select s from w where k = 10)

-- as derived tables
select v.k, u.m from ({joined}) v join ({spaced}) u on v.k = u.k + 10
where u.n > 0

-- as subqueries
select id, (select max(n) from ({joined})) most from c
where k in (select k from ({joined})) or id < (select max(n) from ({joined}))

-- inside repeated queries
select x.k from (select k, n from ({joined}) where n > 0) x
join (select k, n from ({joined}) where n > 0) y on x.k = y.k left join ({joined}) z on z.k = x.k

-- with names of its own
with w(p, p2, q, q2) as ({joined}) select p from w union all select q from w
