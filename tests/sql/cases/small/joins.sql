-- a b
select a.id, b.v from a, b where a.id = b.id

-- a b
select * from a, b where a.id = b.id

-- a b
select * from a join b on a.id = b.id and a.s = b.s

-- a b
select b.*, a.id from a join b on a.id = b.id

-- a b c
select a.id as one, b.id as two, c.id as three from a, b, c where a.id = b.id and b.id = c.id

-- a b c
select a.id, b.id, c.id from a, b, c where a.id = b.id and b.k = c.k and c.id = a.id

-- x y
select x.id, y.id from a x, a y where x.k = y.k

-- x y
select x.id + y.id from a x, a y where x.k = y.k and x.id < y.id

-- a b
select a.id from a, b

-- a b
select count(*) from a, b

-- a b c
select count(1) as n from a, b, c where a.id = b.id and c.k = b.k

-- a b
select count(*) from a cross join b where a.id < b.id

-- a b+
select count(a.id), count(*) from a, b where a.id = b.id

-- a b
select 1 from a, b where a.s = b.s

-- a b
select a.s from a, b where a.x = b.v

-- a b
select a.n, b.n from a, b where a.n = b.n

-- a c
select a.id from a, c where a.k = c.k and a.id = c.id

-- A B
select A.ID, B.V from A, B where a.Id = B.iD

-- q r c
select ID, V, W from (select id as ID from a) q, (select V, id as bid from b) r, (select w, K from c) c where q.id = r.bid and c.K = 10

-- none
select a.id from a, b where a.id <=> b.id

-- a b
select a.id from a, b where a.id <=> b.id and a.k = b.k

-- a b
select a.id, b.id from a, b where upper(a.s) = upper(b.s)

-- a b c
select a.id, b.id, c.id from a, b, c where a.id = b.id and length(c.w) = length(b.s)

-- a b
select a.id from a, b where a.id = b.id and rand() < 2

-- a b c
select a.id from (a join b on a.id = b.id) join c on c.k = b.k

-- a b c e
select a.id from a join ((b join c on b.k = c.k) cross join c e) on a.id = b.id and e.id = a.id

-- a b c
select a.id from a, (b join c on b.k = c.k) where a.id = b.id

-- a b
select a.id from a, a b where a.id = b.id

-- none
select x.w, b.v from (a join c on a.id = c.id) as x, b where x.w = b.s

-- none
select a.id, b.v, c.w from a join (b left join c on b.id = c.id) on a.id = b.id

-- a e
select a.id, e.v, b.v, c.w from (a join b e on a.k = e.k) join (b left join c on b.id = c.id) on a.id = b.id

-- a b
select `a`.`id`, `b`.id from `a`, b where `a`.id = b.`id`

-- odd name a
select `odd name`.`weird col`, `a``b`, `order` from `odd name`, a where `weird col` = a.id

-- o a
select o.`a``b` + 1 from `odd name` o join a on o.`order` = a.s

-- o a
select o.`p.q`, `p.q` from `odd name` o join a on o.`p.q` = a.id

-- o u
select * from `odd name` o join `odd name` u on o.`p.q` = u.`weird col`
