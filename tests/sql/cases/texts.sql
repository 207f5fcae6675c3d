-- no query
drop table a
insert into a select * from b
with q as (select 1) insert into a select * from q
from a insert into b select *
create table x as select 1
explain select 1
set spark.sql.ansi.enabled=false
show tables
merge into a using b on a.id = b.id when matched then delete

-- wrong
select nothing from a, b where a.id = b.id
select id from a, b where a.id = b.id
select * from a, nowhere where a.id = nowhere.id
select a.id from a, b where z.id = b.id
select count(*) from a, b group by a.id order by b.v
select nosuchfunction(a.id) from a, b where a.id = b.id
select a.id from a, a where a.id = 1

-- not parsed
table a
values (1)
from a |> select id
with q as (table a) table q
from a | select id
