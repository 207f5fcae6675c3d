-- a b ?c
select a.id, b.v, c.w from a join b on a.id = b.id left join c on c.k = b.k

-- a b ?c
select a.id, b.v, c.w from a left join c on c.id = a.id join b on a.k = b.k

-- a c b
select a.id, b.v, c.w from a left join c on c.id = a.id join b on c.k = b.k

-- a c b
select a.id, b.v, c.w from a left join c on c.id = a.id join b on a.k = b.k and c.k = b.k

-- a b ?c
select a.id, c.w from a left join c on c.id = a.id, b where a.k = b.k and c.w is null

-- a b +c
select a.id, b.id from a join b on a.k = b.k left semi join c on c.id = a.id

-- a b -c
select a.id, b.id from a join b on a.k = b.k left anti join c on c.id = a.id where b.v > 1

-- a b ?c
select * from a join b on a.k = b.k left join c on c.id = a.id

-- a b +c
select * from a join b on a.k = b.k left semi join c on c.id = a.id

-- a b ?c
select a.*, c.w from a join b on a.k = b.k left join c on c.id = a.id and c.w = 'p' where a.id < 4

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k right join c on c.id = a.id

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k right join c on c.id = a.id where b.v > 1

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k full join c on c.id = a.id where a.id = 1

-- a b
select a.id, b.id, c.id from a join b on upper(a.s) = b.s and a.k = b.k full join c on c.id = a.id

-- b a c
select a.id, b.id, c.id from a right join b on a.k = b.k join c on c.id = a.id

-- none
select a.id, b.id, c.id from a, b full join c on c.id = a.id where a.k = b.k

-- a ?b
select a.id from a left join b on a.id = b.id

-- a b ?z
select a.id, z.n from a join b on a.id = b.id left join (select k, count(*) n from c group by k) z on z.k = b.k

-- a b e ?c
select a.id, b.id, c.w, e.s from a join b on a.k = b.k left join c on c.id = a.id join a e on e.id = b.id

-- a ?b
select a.id, b.v from a left join b on a.k = b.k

-- a ?b
select a.*, b.* from a left join b on a.k = b.k

-- a ?b
select * from a left join b on a.s = b.s and a.id = b.id

-- a ?b
select a.id, b.id bid from a left join b on a.k = b.k and b.v > 1 and a.id < 4 and a.d <= b.d

-- a ?b
select a.id, b.id bid from a left join b on a.x = b.v where b.id is null

-- a ?b
select a.id, coalesce(b.s, 'none') s from a left join b on b.id = a.id where b.v is null or b.v > 1.0

-- a ?b ?c
select a.id, b.v, c.w from a left join b on a.id = b.id left join c on c.id = a.id

-- a ?b ?c
select a.id, b.v, c.w from a left join b on a.id = b.id left join c on c.k = b.k

-- a ?b ?c
select a.id, c.st.f, c.w from a left join b on a.id = b.id left join c on c.k = b.k and c.id <> a.id and b.v > 1

-- a b ?c
select count(*) from a join b on a.id = b.id left join c on c.k = b.k

-- a ?b+
select count(*), count(b.id), sum(b.v), min(b.s) from a left join b on a.k = b.k

-- a ?b+
select b.s, count(*) n, sum(a.n) m from a left join b on a.k = b.k group by b.s

-- a ?b ?c+
select c.w, count(distinct a.id) n, avg(b.v) v from a left join b on a.k = b.k left join c on a.id = c.id group by c.w having count(*) > 1

-- a ?b+
select distinct b.id from a left join b on a.k = b.k order by b.id

-- a ?b
select * from a left join b using (id)

-- a ?b
select id, k, b.k bk from a left outer join b using (id, k)

-- a ?z
select a.id, z.n from a left join (select k, count(*) n from b group by k) z on a.k = z.k

-- a ?z
with z as (select id, max(v) v from b where v > 0 group by id) select a.id, z.v from a left join z on z.id = a.id

-- b c|z ?a
select z.id, z.w, a.s from (select b.id, c.w from b join c on b.k = c.k) z left join a on a.id = z.id

-- a ?b ?e
select a.id, b.id, e.id from a left join b on a.k = b.k left join b e on e.id = b.id and e.k > b.k

-- a ?b +c
select a.id, b.v from a left join b on a.k = b.k where exists (select 1 from c where c.id = a.id)

-- a ?b -c
select a.id, b.v from a left join b on a.k = b.k left anti join c on c.id = a.id

-- none
select a.id, b.v from a left join b on a.k = b.k where exists (select 1 from c where c.id = b.id)

-- a ?b
select a.id, b.v, c.w from a left join b on a.id = b.id left join c on upper(c.w) = b.s

-- a ?c
select a.id, b.v, c.w from a left join b on a.id < b.id left join c on c.id = a.id

-- none
select a.id, b.v, c.w from a left join b on a.id = b.id full join c on c.id = a.id

-- a ?b
select a.id, row_number() over (partition by b.id order by a.id, a.k, b.v) r from a left join b on a.k = b.k

-- a ?b
select a.id, b.v from a left join b on a.n = b.n and a.flag

-- a ?b
select a.id from a left join b on a.id = b.id and 1 = 1

-- x ?y
select x.id, y.f from a x left join (select id, k, s f from b where s is not null) y on y.id = x.id and y.k = x.k

-- b ?c+|a +subquery
select id from a where id in (select b.id from b left join c on b.k = c.k where b.id is not null)

-- a ?b +b_
select a.id, b.v from a left join b on a.k = b.k where exists (select 1 from b where b.id = a.id)

-- a ?b +b_
select a.id, b.v from a left join b on a.k = b.k where a.k in (select k from b where v > 1)

-- a b
select a.id, b.v from a left join b on a.k = b.k where b.v > 1

-- a b ?c
select a.id, c.w from a join b on a.id = b.id left join c on c.k = b.k where not c.w like 'q%' or (c.id < 3 and a.k > 0)

-- a b c
select a.id, c.w from a left join b on a.id = b.id left join c on c.k = b.k where upper(c.w) = 'P'

-- a b
select a.id, b.v from a left join b on a.k = b.k where b.id in (1, 2) and not b.s like 'x%'

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where b.s is null or b.id in (1, 2)

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where not (a.id between b.id and 2)

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where not (b.id is not null and a.id > 1)

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where coalesce(b.v, 2) > 1 and not not b.v is null

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where b.id in (select id from c)

-- a ?b
select a.id, b.v from a left join b on a.k = b.k where b.id not in (select id from c where id > 100)

-- a z
select a.id, z.n from a left join (select k, count(*) n from b group by k) z on a.k = z.k where z.n is not null

-- b ?a
select a.id, b.v from a right join b on a.k = b.k

-- b ?a
select a.*, b.id bid from a right join b on a.k = b.k and a.id > 1 where b.v is not null

-- b a
select a.id, b.v from a right join b on a.k = b.k where a.id > 1

-- b ?a+
select count(*), count(a.id) from a right join b on a.k = b.k group by b.s

-- b c ?a
select a.id, b.id, c.w from a right join (b join c on b.k = c.k) on a.id = b.id

-- b ?a ?c
select a.id, b.id, c.w from a right join b on a.id = b.id left join c on c.id = b.id

-- none
select * from a right join b on a.k = b.k

-- none
select id, a.s from a right join b using (id)

-- none
select a.id, b.id, c.w from a right join b on a.id = b.id join c using (k)

-- a b
select /*+ broadcast(z) */ a.id, z.n from a join b on a.id = b.id left join (select k, count(*) n from c group by k) z on z.k = a.k where z.n > 1
