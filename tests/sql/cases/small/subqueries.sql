-- a b +c
select a.id from a, b where a.id = b.id and a.k in (select k from c)

-- a b -c
select a.id from a, b where a.id = b.id and a.k not in (select k from c where k is not null)

-- a b -c
select a.id from a, b where a.id = b.id and a.k not in (select k from c)

-- a b +c
select a.id from a, b where a.id = b.id and (a.k, b.id) in (select k, id from c)

-- a b +c
select a.id from a, b where a.id = b.id and a.k in (select k from c where c.id = b.id)

-- c b+|a b +subquery
select a.id from a, b where a.id = b.id and a.k in (select c.k from c, b where c.id = b.id)

-- c b+|a +subquery
select a.id from a where a.k in (select c.k from c, b where c.id = b.id)

-- a b +c
select a.id from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k and c.id < b.k)

-- c b+|a b +subquery
select a.id from a, b where a.id = b.id and exists (select 1 from c, a b where c.k = b.k and c.id = a.id)

-- a b +a_
select a.id from a, b where a.id = b.id and exists (select 1 from c a where a.k = b.k)

-- a b +b_
select a.id from a, b where a.id = b.id and exists (select 1 from c b where a.k = b.k)

-- a b
select a.id, (select max(c.id) from c where c.k = a.k) m from a, b where a.id = b.id

-- a b
select a.id, (select max(c.id) from c where c.k = b.k and c.id < 5) m from a, b where a.id = b.id

-- a b
select a.id from a, b where a.id = b.id and b.v > (select avg(v) from b)

-- a b
select a.id from a, b where a.id = b.id and a.k > (select min(k) from c where st.f = a.id)

-- a c
select c.st.g, a.id from a, c where a.id = c.st.f

-- a c
select c.st.g, st.f, a.id from a, c where a.id = c.id

-- a c
select c.st.*, a.id from a, c where a.id = c.id

-- a c
select transform(arr, k -> k + a.id), a.k from a, c where a.id = c.id

-- a b +c
select count(*) from a, b where a.id = b.id and a.id in (select id from c)

-- a b
select (select count(*) from a, b where a.id = b.id) as n

-- a b +c
select a.id from a join b on a.id = b.id and b.k in (select k from c)
