select * from prices where sku in ('a', 'b', 'a')

select count(*) from prices p where sku = 'a' or sku = 'b' and price > 1

select * from prices p where p.sku = 'a' and price * 2 > 2.5

select * from cats where k = 1.0

select * from cats where k in (1, 2) and k = 1.5

select price from pairs where sku = 'a' and region in ('EU', 'nowhere')

select sum(price) from prices where sku in (select sku from o where id < 4)

select price from prices where sku = concat('', 'a')

select price from prices p where p.sku in (select sku from o) and p.k in (select n from o)

select price from scanned

select r.price, o.id from scanned r full join o on r.sku = o.sku where r.price < 100

select price from either where k = 1
