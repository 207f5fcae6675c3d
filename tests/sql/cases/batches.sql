-- block
select a.id, b.k as id, a.s as text from a join b on a.id = b.id

-- Spark
select distinct a.id from a join b on a.id = b.id
select 1, a.id from a join b on a.id = b.id
select a.id + 1 as n, b.v from a join b on a.id = b.id where upper(a.s) = 'X'
select a.id, count(*) as id from a, b where a.k = b.k group by a.id order by 1 limit 9
select * from a where id > 100
select count(*) from a, b where a.id = b.id
