select o.id, p.price from o left join prices p on o.sku = p.sku and p.price > 1.5 and o.id < 5

select o.id, p.price from o left join prices p on coalesce(o.sku, 'z') = p.sku where o.id > 1 and p.price is null

select p.*, o.id from o left join prices p using (sku)

select p.price, o.id from prices p right join o on p.sku = o.sku and o.id > 1

select p.price, c.name, o.id from o left join prices p on o.sku = p.sku left join cats c on p.k = c.k

select o.id, c.name, p.price from o left join cats c on o.n = c.k join prices p on coalesce(c.nxt, 'z') = p.sku

select * from prices p full join o on p.sku = o.sku where p.sku = 'a'

select id from o left semi join prices p on p.sku = o.sku and p.price > 2

select id from o left anti join pairs p on p.sku = o.sku and p.region = 'EU'

select o.sku, count(p.price), sum(p.price) from o left join prices p on p.sku = o.sku and p.region = o.region group by o.sku

select /*+ broadcast(o) */ o.id -- c
, p.price from o -- x
 left join prices p -- y
 on o.sku -- z
 = p.sku -- {w}
 where o.id < 5 -- end

with x as (select *, row_number() over (order by n) r from o) select x.id, p.price from x left join prices p on x.sku = p.sku

select count(*), count(p.price) from (select * from o order by id limit 3) o left join prices p on o.sku = p.sku

select o.id, c.name, p.price from o join cats c on o.n = c.k left join prices p on c.nxt = p.sku and o.region = 'EU'

select o.id, p.price from o left join prices p on o.sku = p.sku and p.sku in ('a', 'q')

select o.id, a.price, b.name from o left join prices a on o.sku = a.sku left join cats b on a.k = b.k where a.region is null or b.name > 'o'

select o.region, count(*), sum(p.price) from o left join prices p using (sku) where o.sku not in (select nxt from c where nxt is not null) group by o.region

select o.id, c.name from o left join prices p on o.sku = p.sku and p.sku in ('a', 'q') left join cats c on p.k = c.k

select d.id, c.name from (select o.id, q.k from o left join pairs q on o.sku = q.sku and q.region = 'EU') d join cats c on d.k = c.k

select o.id, c.name from o left join either e on o.sku = e.sku left join cats c on e.k = c.k
