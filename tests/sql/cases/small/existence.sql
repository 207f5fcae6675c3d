-- c x+|c x+|a b +subquery/+subquery_
select a.id, b.k from a, b where a.id = b.id and (exists (select * from c, b x where c.id = x.id and c.k = a.k) or exists (select * from c, b x where c.k = x.k and c.id = b.id))

-- c x+|b x+|a +subquery/+subquery_
select a.id, a.s from a where exists (select * from c, b x where c.id = x.id and c.k = a.k) or exists (select 1 from b, a x where b.k = x.k and b.s = a.s and x.flag)

-- c x+|b x+|a +subquery +subquery_/-c
select a.id from a where exists (select * from c, b x where c.id = x.id and c.k = a.k) and (exists (select b.* from b, a x where b.k = x.k and b.id = a.id) or not exists (select * from c where c.id = a.id and c.k < a.k))

-- c x+|a -subquery
select a.id from a where not exists (select * from c, b x where c.id = x.id and c.k = a.k)

-- c x+|a b -subquery/-b_
select a.id, a.k from a, b where a.id = b.id and (not exists (select 1 from c, b x where c.id = x.id and c.k = a.k) or not exists (select null from b where b.k = a.k and b.v > 1))

-- c x+|a -subquery
select a.id from a where not exists (select distinct c.k, x.v from c, b x where c.id = x.id and c.k = a.k)

-- c x+|a b +subquery/+b_
select a.id from a, b where a.id = b.id and (a.k in (select c.k from c, b x where c.id = x.id) or b.k in (select k from b where v < 2))

-- c x+|a +subquery
select a.id, a.k from a where a.id = 4 or a.k in (select c.k from c, b x where c.id = x.id)

-- c x+|a -subquery
select a.id, a.k from a where a.id = 4 or a.k not in (select c.k from c, b x where c.id = x.id)

-- c x+|a -subquery
select a.id, a.k from a where a.id is null or a.k not in (select c.k from c, b x where c.id = x.id and c.k is not null)

-- c x+|a -subquery
select a.id, a.k from a where a.k not in (select c.k from c, b x where c.id = x.id and c.k > 1000) or a.s = 'x'

-- c x+|a -subquery
select a.id, a.k from a where not (a.k in (select c.k from c, b x where c.id = x.id) and a.id > 1)

-- c x+|a -subquery
select a.id, a.k from a where not (a.k in (select c.k from c, b x where c.id = x.id) or a.id > 4)

-- c x+|a +subquery/+b
select a.id, a.k from a where not (not exists (select * from c, b x where c.id = x.id and c.k = a.k) and a.id not in (select id from b where id is not null))

-- c x+|a +subquery/-b
select a.id, a.k from a where exists (select * from c, b x where c.id = x.id and c.k = a.k) or (a.k not in (select k from b) and a.flag)

-- c x+|a b +subquery
select a.id from a, b where a.id = b.id and (a.k, b.id) in (select c.k, c.id from c, b x where c.id = x.id)

-- c x+|a b +subquery
select a.id from a, b where a.id = b.id and ((a.k, b.id) in (select c.k, c.id from c, b x where c.id = x.id) or a.x = 1.5)

-- c x+|a b
select a.id from a, b where a.id = b.id and ((a.k, b.id) not in (select c.k, c.id from c, b x where c.id = x.id) or a.x = 1.5)

-- c x+|a b
select a.id from a, b where a.id = b.id and (exists (select count(*) from c, b x where c.id = x.id and c.k = a.k) or a.id = 1)

-- c x+|a b
select a.id from a, b where a.id = b.id and not exists (select max(c.k) from c, b x where c.id = x.id and c.k = a.k)

-- c x+|a +subquery
select a.id from a where a.k in (select max(c.k) from c, b x where c.id = x.id) or a.id = 4

-- c x+
select a.id from a where exists (select 1 from c, b x where c.id = x.id and c.k = a.k having count(*) > 1)

-- c x
select a.id from a where exists (select 1 from c, b x where c.id = x.id and c.k = a.k limit 0) or a.id = 4

-- c x|a +subquery
select a.id from a where a.k in (select c.k from c, b x where c.id = x.id limit 0) or a.id = 4

-- c x
select a.id from a where exists (select 1 from c, b x where c.id = x.id limit 0) or exists (select 1 from c where c.k = a.k)

-- b x+|c +subquery+|a b +subquery
select a.id, b.id from a, b where a.id = b.id and exists (select * from c where c.k = a.k and exists (select * from b, a x where b.k = x.k and b.id = c.id))

-- b x+|c +subquery+|a b +subquery
select a.id, b.id from a, b where a.id = b.id and exists (select * from c where c.k = a.k and (exists (select * from b, a x where b.k = x.k and b.id = c.id) or c.id = 1))

-- b x+|c +subquery+|a +subquery
select a.id from a where exists (select * from c where c.k = a.k and (exists (select * from b, a x where b.k = x.k and b.id = c.id) or c.w = 'p')) or a.id = 4

-- c x+|a b +subquery/+a_
select a.id, b.k from a, b where a.id = b.id and (exists (select * from c, b x where c.id = x.id and c.k = a.k and x.v < b.v) or exists (select * from a where a.id = b.k and a.x >= b.v))

-- c x+|a b -subquery
select a.id, b.k from a, b where a.id = b.id and not exists (select * from c, b x where c.id = x.id and c.k = a.k and c.id <> b.id)

-- c x+|a b -subquery/+c
select a.id, b.k, a.k ak from a, b where a.s = b.s and (not exists (select * from c, b x where c.id = x.id and x.k = b.k and c.k > a.k) or exists (select * from c where c.id = a.id and c.k <> b.k))

-- b x+|a +subquery
select a.id, a.id from a where exists (select b.k, x.* from b, b x where b.k = x.k and b.s = a.s) or a.s is null

-- b c ?x+|a -subquery
select a.id from a where not exists (select * from b left join b x on b.id = x.k join c on c.id = b.id where b.s = a.s)

-- c q+
select a.id, exists (select * from c, b q where c.id = q.id and c.k = a.k) e from a

-- c q+|a b
select a.id, a.k in (select c.k from c, b q where c.id = q.id) e from a, b where a.id = b.id

-- c q+|a b
select a.id, case when exists (select * from c, b q where c.id = q.id and c.k = a.k) then 1 when a.k not in (select c.k from c where c.id = b.id) then 2 end e from a, b where a.id = b.id

-- c x+|a b +subquery/-c+
select a.s, count(*) n, sum(b.v) v from a, b where a.id = b.id and (exists (select * from c, b x where c.id = x.id and c.k = a.k) or not exists (select * from c where c.k = b.k)) group by a.s

-- c x|c x+|q x +subquery
select q.id from (select c.id from c, b x where c.id = x.id) q, b x where q.id = x.id and q.id in (select c.id from c, b x where c.id = x.id)

-- a b
select a.id from a, b where a.id = b.id and (exists (select 1 from c where c.k = a.k and rand() >= 0) or a.id = 2)

-- a b
select a.id from a, b where a.id = b.id and (exists (select 1 from c where c.k = a.k) or a.id + b.k > 12)

-- none
select a.id from a left join b on a.id = b.id and (exists (select 1 from c where c.k = a.k) or b.v > 1)

-- none
select a.id from a join b on a.id = b.id and (exists (select 1 from c where c.k = a.k) or b.v > 1) right join c z on z.id = a.id

-- a b ?z +c
select a.id, z.id from a join b on a.id = b.id and (exists (select 1 from c where c.k = a.k) or b.v > 1) left join c z on z.id = a.id

-- a +c/+b
select count(*) from a where exists (select 1 from c where c.k = a.k) or exists (select 1 from b where b.id = a.id)

-- c x+|a +subquery
select a.id from a where a.k in (select c.k + 10 from c, b x where c.id = x.id) or a.id = 4

-- c x|a +subquery
select a.id from a where a.k in (select lag(c.k) over (order by c.k, c.w, x.v) from c, b x where c.id = x.id)

-- c x+|a b z +subquery/+a_
select a.id, z.w from a, b, c z where a.id = b.id and z.k = b.k and (exists (select * from c, b x where c.id = x.id and c.k = a.k and x.k = z.k) or z.id in (select id from a where flag))

-- c x+|a +subquery
select a.id from a where exists (select * from c, b x where c.id = x.id and c.k = a.k and x.v < (select avg(v) from b)) or a.id = 4
