-- around
select {items} from {left} {join} {right} on {on} where {where}
select count(*) from {left} {join} {right} on {on} where {where}
select d.* from (select {items} from {left} {join} {right} on {on}) d join o on d.id = o.id
with w as (select {items} from {left} {join} {right} on {on} where {where}) select v.id from w v, w where v.id = w.id
select {items} from {left} {join} {right} on {on} left join o x on x.id = {left_alias}.k where {where}
select {items} from c, {left} {join} {right} on {on} where c.k = 1 and {where}
select id from o where o.id = 1 or exists (select 1 from prices p where {on} and p.price > 1)
select id, (select count(*) from {table} p where {on}) n from o

-- join
join
left join
right join
full join
left semi join
left anti join

-- on
p.sku = o.sku
lower(o.sku) = p.sku
upper(o.sku) = upper(p.sku)
p.sku = o.sku and p.price > 1.5
p.sku = o.sku and o.id > 2
p.sku = 'a'
coalesce(o.sku, 'z') = p.sku or p.sku = 'b'
p.sku = o.sku and p.region = 'EU'

-- where
true
p.sku in ('a', 'b')
o.id < 4
p.sku is null or o.id = 2
p.sku in (select nxt from c)
