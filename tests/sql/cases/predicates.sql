-- none ; above(id)
select * from a where above(id)

-- none ; above(id) & short(s)
select id, s from a where above(id) and short(s)

-- none ; ABOVE(a.id) & `match`(k)
select id from a where (ABOVE(a.id) and (x > 0 or flag))and`match`(k)

-- none ; near(id, k - 9)
select * from a where near(id, k - 9)order by 1, 2

-- none ; near(id, id) & above(id)
select s, count(*) from a where near(id, id) and above(id)group by s

-- none ; none
select id, above(id), short(s) as t from a

-- none ; none
select id from a where not above(id) or match(k)

-- none ; none
select id from a where above(id) is null

-- none ; none
select s, case when above(id) then 1 when short(s) then 2 end as c from a

-- none ; none
select s, count(*) from a group by s having above(count(*))

-- none ; above(id)
with q as (select id, s from a where above(id)) select * from q union all select * from q

-- none ; short(s)
select * from (select id, s from a where short(s)) t where id is not null

-- none ; above(id) | above(k)
select id from a where above(id) union select id from b where above(k)

-- none ; above(id)
select id, (select max(v) from b where above(id)) m from a

-- a +subquery ; match(k)
select id from a where id in (select id from b where match(k))

-- none ; none
select id from a where above((select max(id) from b))

-- none ; above(b.k)
select id from a where exists (select 1 from b where b.id = a.id and above(a.k) and above(b.k))

-- a b ; none
select a.id, b.v from a, b where a.id = b.id and above(a.id)

-- a b ; none
select a.id, b.v from a join b on a.id = b.id and near(a.k, b.k) and short(a.s)

-- a b ; none
select count(*) from a, b where a.k = b.k and near(a.id, b.id) and near(12, b.k)

-- a b ; none
select above(a.k) r, a.id from a, b where a.id = b.id and (above(b.id) or above(a.k))

-- a b ; near(a.id + 1, b.k)
select * from a, b where a.id = b.id and near(a.id + 1, b.k) and above(b.id)

-- a b ; near(a.id, b.k)
select 1 from a, b where a.id = b.id and a.id + b.k > 3 and near(a.id, b.k)

-- a b c ; none
select w from a, b, c where a.id = b.id and b.k = c.k and near(a.k, c.k) and match(b.k)

-- a b ; near(a.k, c.k) & above(c.id)
select w from a, b, c where a.id = b.id and near(a.k, c.k) and above(c.id)

-- none ; near(a.k, b.k)
select a.id, v from a, b where near(a.k, b.k)

-- a b ; none
select a.id, v from a, b where above(a.id)

-- none ; none
select a.id, b.v from a left join b on a.id = b.id and above(b.k)

-- a ?b ; short(b.s)
select * from a left join b on a.id = b.id where above(a.id) and short(b.s)

-- a b ?c ; above(c.k)
select w from a join b on a.id = b.id left join c on c.id = a.id where above(c.k) and match(a.k)

-- none ; none
select a.id from a full join b on a.id = b.id and a.k > 1

-- t b ; short(s)
select t.id, v from (select * from a where short(s)) t join b on t.id = b.id and above(t.k)

-- a c +subquery ; above(k)
select w from a, c where a.id = c.id and c.k in (select k from b where above(k)) and match(a.k)
