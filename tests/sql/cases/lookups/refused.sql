-- gives values for (prices.sku) (from prices: lookup table 'prices' needs values
select * from prices

-- needs values for (prices.sku)
select count(*) from prices where price > 1

-- upper(p.sku) = o.sku compares an expression of the column
select o.id from o join prices p on upper(p.sku) = o.sku

-- compare only after a cast of the column
select o.id, p.price from o left join prices p on o.id = p.sku

-- also asks for null
select p.price from prices p join o on p.sku <=> o.sku

-- a RIGHT JOIN keeps all of its rows
select p.price from o right join prices p on p.sku = o.sku

-- a FULL JOIN keeps all of its rows
select p.price from o full join prices p on p.sku = o.sku

-- keeps all rows of its left side
select p.price from prices p left join o on p.sku = o.sku

-- keeps all rows of its left side
select p.price from prices p left anti join o on p.sku = o.sku

-- IN is not a condition of its own
select o.id from o where o.sku not in (select sku from prices)

-- an aggregate around it reads all of its rows
select o.id, (select max(price) from prices) from o

-- a LIMIT or QUALIFY around it
select o.id from o join (select sku from prices limit 2) p on o.sku = p.sku

-- a window function around it
select o.id from o join (select sku, rank() over (order by price) r from prices) p on o.sku = p.sku

-- may give others when it runs again (LIMIT)
select o.id from (select * from o limit 3) o left semi join prices p on o.sku = p.sku

-- a function that may differ between two calls
select o.id from (select *, rand() r from o) o left join prices p on o.sku = p.sku

-- row_number, which takes any of several
with x as (select *, row_number() over (order by n) r from o) select x.id from x left anti join prices p on x.sku = p.sku

-- it stands in a parenthesised join
select o.id from o left join (o o2 join prices p on o2.sku = p.sku) on o.id = o2.id

-- TABLESAMPLE
select * from prices tablesample (50 percent) where sku = 'a'

-- a list of column names
select * from prices as q(a, b, c, d) where a = 'a'

-- it depends on the FROM clause that it stands in
select o.id, x.price from o, lateral (select price from prices p where p.sku = o.sku) x

-- Spark alone can read the query (TABLE as a query is left to Spark)
table prices

-- pipe syntax
from prices |> where sku = 'a'

-- needs values for (p.sku, p.region)
select o.id from o join pairs p on o.sku = p.sku

-- has to be read twice
select l.id from limited l left semi join prices p on l.sku = p.sku

-- a list of column names behind p
select o.id, p.b from o join prices p(a, b, c, d) on o.sku = p.a

-- max_by, which takes any of several
with x as (select n, max_by(sku, id) s from o group by n) select x.n from x left anti join prices p on x.s = p.sku

-- collect_set, which takes any of several
with x as (select n, collect_set(sku)[0] s from o group by n) select x.n from x left anti join prices p on x.s = p.sku

-- listagg, which takes any of several
with x as (select n, listagg(sku) s from o group by n) select x.n from x left anti join prices p on x.s = p.sku

-- needs values for (metrics.host, an interval of metrics.at)
select * from metrics where host = 'a'

-- What would work: m.at BETWEEN … AND …, or two comparisons
select e.id from events e join metrics m on m.host = e.host and m.at >= e.since

-- all of the type of t.n: cast those of another
select e.id from events e join ticks t on t.n between e.low and e.high + 0.5
