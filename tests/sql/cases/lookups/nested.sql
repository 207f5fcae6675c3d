select id from o where exists (select 1 from prices p where p.sku = o.sku and p.price > 2)

select id from o where id = 1 or not exists (select 1 from prices p where p.sku = o.sku and p.price > 2)

select id from o where o.sku in (select sku from prices where price > 2)

select o.id from o where (o.sku, o.n) in (select sku, k from prices)

select id, (select max(price) from prices p where p.sku = o.sku) m from o

select o.id, d.price from o join (select * from prices where price > 1) d on d.sku = o.sku

select o.id, p.price from o join prices p on lower(o.sku) = p.sku

select * except (price, k) from (select id, sku s from o) d join prices p on d.s = p.sku

with q as (select sku, max(price) m from prices group by sku) select o.id, q.m from o join q on q.sku = o.sku

with q as (select * from prices where price > 1), r as (select q.sku, q.price, o.id from q join o on q.sku = o.sku) select s.id, t.price from r s left join r t on s.sku = t.sku

with unused as (select * from prices) select id from o

select o.id, d.s from o left join (select sku as s from prices union all select nxt from cats where k = 1) d on d.s = o.sku

select * from prices where sku = 'a' union all select * from prices p where p.sku in ('b') and p.price > 0

with q as ((select sku, price from prices)) select o.id, q.price from o left join q on q.sku = o.sku

select o.id, c.k from (select * from o where sku is not null) o full join c on o.n = c.k where exists (select 1 from prices p where p.sku = coalesce(o.sku, 'z'))

select o.id, c.k from (select * from o where sku is not null) o right join c on o.n = c.k where coalesce(o.sku, 'z') in (select sku from prices)

select o.id from o left join c on o.n = c.k where exists (select 1 from prices p where p.sku = coalesce(c.nxt, 'z'))

select id from o join (select id, n + 1 m from o where id < 6) l using (id) left semi join prices p using (sku)

select id from o join (select id, region r from o where id < 6) l using (id) left semi join pairs p on p.sku = o.sku and p.region = l.r

select o.id from o left semi join prices p using (sku) join limited b on b.n = o.n
