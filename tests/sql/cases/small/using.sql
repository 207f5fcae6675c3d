-- a b
select * from a join b using (id)

-- a b
select id, a.k, b.k from a join b using (id)

-- a b
select id, b.id, a.id from a join b using (id) where id > 1

-- a b
select k, id from a join b using (k, id)

-- a b
select * from a join b using (k, id)

-- a b
select b.* from a join b using (id)

-- a b
select b.*, a.* from a join b using (k)

-- a b c
select * from a join b using (id) join c using (id)

-- a b c+
select id, count(*) from a join b using (id) join c using (id) group by id

-- a b ?c
select id, w from a join b using (id) left join c using (id)

-- a b ?c
select * from a join b using (id) left join c using (id)

-- a b
select * from a natural join b

-- a b
select id, s, v from a natural join b

-- a c
select a.x, c.w from a natural join c
