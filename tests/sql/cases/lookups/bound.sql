select o.id, p.price from o join prices p on o.sku = p.sku

select * from o, prices where o.sku = prices.sku and price > 1 and upper(prices.region) = 'EU'

select p.price, o.id from o join prices p using (sku)

select o.id, c.name from o join prices p on o.sku = p.sku join cats c on p.k = c.k

select a.price, b.price from prices a, prices b, o where o.sku = a.sku and a.region = b.region and b.sku = 'a'

select o.id, p.price from o join pairs p on o.sku = p.sku and o.region = p.region

select o.id, p.price from o join pairs p on o.sku = p.sku where p.region in ('EU', 'US')

select o.id, p.price from o join prices p on o.sku = p.sku and o.n = p.k and (p.price > 1 or o.id = 1)

select o.id, c.name from o join cats c on o.n = c.k and o.id = c.k

select count(*) from o join prices p on o.sku = p.sku

select o.id, r.price from o join either r on o.sku = r.sku and o.n = r.k

select o.id, r.sku from o join scanned r on o.sku = r.sku where r.price > 1

select o.id from o join cats c on o.n = c.k and cast(o.id as bigint) = c.k

select o.id, r.price from o join listed r on o.sku = r.sku

select o.id, r.price from o join listed r on o.n < r.k

select price from listed
