-- a b+
select a.s, sum(a.k), count(*), count(b.v), avg(a.k), min(b.s), max(a.d), sum(a.x), min(a.x), max(a.x) from a join b on a.id = b.id group by a.s

-- a b+
select sum(a.k), count(*) + 1, avg(a.n), max(b.s), count(a.id), min(b.v) from a join b on a.id = b.id where a.k > 1000 having count(*) < 10

-- a b+
select a.s, sum(a.n), avg(a.n), sum(b.n), avg(b.n), min(a.n), max(b.n) from a join b on a.id = b.id group by a.s

-- a b+
select a.s, sum(a.n * (1 - b.n)) as r, sum(a.n + b.n), sum(a.n - a.id), avg(a.n * 2.5), max(a.n + 1) from a join b on a.id = b.id group by a.s order by r

-- a b+
select year(a.d), a.k + 1, count(*) from a join b on a.id = b.id group by year(a.d), a.k + 1 having count(*) > 1

-- a b+
select a.k, b.id, sum(a.k), count(*), grouping(a.k), grouping_id(a.k, b.id) from a join b on a.id = b.id group by rollup (a.k, b.id)

-- a b+
select a.k, b.id, sum(a.n) from a join b on a.id = b.id group by a.k, b.id grouping sets ((a.k), (b.id), ())

-- a b+
select a.k, b.s, max(a.n), count(1) from a join b on a.id = b.id group by all

-- a b+
select count(distinct a.s), sum(distinct a.k), count(distinct a.k, b.id), sum(b.v), approx_count_distinct(a.k) from a join b on a.id = b.id

-- a b+
select a.s, count(*) filter (where b.id > 1), sum(a.k) filter (where a.flag), avg(a.k) filter (where b.v > 0) from a join b on a.id = b.id group by a.s

-- a b+
select b.id, sum(case when a.s = 'x' then a.n else 0 end) c, sum(case when a.s = 'x' then a.k when a.flag then b.k end), sum(if(a.flag, 1, 0)), sum(case a.s when 'x' then a.n * 2 when 'y' then null else b.n end), avg(case when a.flag then a.k end), count(case when a.flag then 1 end) from a join b on a.id = b.id group by b.id

-- a b+
select b.id, count_if(a.k > 10 and b.v > 0), bool_and(a.flag), bool_or(a.flag), every(a.flag), some(a.flag), mean(a.k) from a join b on a.id = b.id group by b.id

-- a b+
select a.k, sum(a.k) over (partition by a.k), sum(count(*)) over (order by a.k), rank() over (order by sum(b.v)) from a join b on a.id = b.id group by a.k

-- a b+
select distinct a.s as t, b.id from a join b on a.id = b.id order by t

-- a b
select distinct a.s, count(*) over () from a join b on a.id = b.id

-- a b+
select s, y, sum(volume), count(*), max(volume + 1) from (select a.s as s, year(a.d) as y, a.n * (1 - b.n) as volume from a join b on a.id = b.id) as q where y > 1000 group by s, y order by s, y

-- a b+
with q as (select a.s, a.k * 1.5 as u, b.v, a.n from a join b on a.id = b.id) select s, sum(u), sum(v), sum(case when u > 20 then u else 0 end), count(*) filter (where u > 20) from q group by s

-- a b
with q as (select a.s, a.k as u from a join b on a.id = b.id) select q.s, sum(q.u), (select max(u) from q) from q group by q.s

-- a b+
select count(*) from (select a.id, b.v, (select max(k) from c where c.id = a.id) m from a join b on a.id = b.id)

-- a b
select q.u, count(*) from (select a.k as u, u + 1 as w from a join b on a.id = b.id) q group by q.u

-- a b
select u, sum(n) from (select a.k as u, row_number() over (order by a.id, b.id, b.s, a.s) n from a join b on a.id = b.id) group by u

-- a b+
select c.id, (select sum(a.k) from a join b on a.id = b.id where a.id = c.id) s, (select 1) from c

-- a b+
select c.id, (select count(*) from a join b on a.id = b.id where a.id = c.id) s from c

-- a b+|a c+
select a.s, sum(a.k) from a join b on a.id = b.id group by a.s union all select c.w, count(*) from a join c on a.id = c.id group by c.w

-- a b+
select a.x, a.n, 1 / nullif(a.x, 0), sum(a.k) from a join b on a.id = b.id group by a.x, a.n

-- a c
select c.st.f, count(*) from a join c on a.id = c.id group by c.st.f

-- a b
select a.k, sum(a.id), sort_array(collect_list(b.id)) from a join b on a.id = b.id group by a.k

-- a b
select sum(a.id + b.id) from a join b on a.id = b.id

-- a b+
select sum(cast(a.id as bigint) * b.id), sum(a.id * 2.5), sum(a.k * 1.5D), sum(a.x * b.v), sum(cast(a.id as double) * a.k), sum(1), sum(0), sum(2.5), count(2), sum(cast(a.n as decimal(20, 4)) * 2), sum(cast(a.id as decimal(12, 2)) + a.n), max(a.id / b.id), min(upper(a.s)), any_value(a.k) is null from a join b on a.id = b.id

-- a b
select a.k, sum(b.v) from a, b where a.id = b.id and rand() < 2 group by a.k

-- a b+
select a.k, sum(b.v) from a, b where a.id = b.id and ascii(a.s) + b.id > 1 and exists (select 1 from c where c.id = a.id + b.id) group by a.k

-- a b
select a.k from a, b where a.id = b.id group by a.k having exists (select 1 from c where c.id <= sum(b.id))

-- a b ?c+
select a.k, count(*), sum(a.n), max(c.w), count(distinct c.id) from a join b on a.id = b.id left join c on c.k = b.k group by a.k

-- a b ?c+
select a.k, sum(c.id) from a join b on a.id = b.id left join c on c.k = b.k group by a.k

-- a b
select a.k, count(*) from a join b on a.id = b.id right join c on c.k = b.k group by a.k

-- a b+
select a.k, e, count(*), sum(a.n) from a join b on a.id = b.id lateral view explode(array(1, 2, 2)) t as e group by a.k, e

-- a b+
select id, sum(n), count(*) from (select a.id, a.n from a join b using (id)) group by id

-- a b+
select * from (select a.k, sum(b.id), max(struct(a.k, b.id)) from a join b on a.id = b.id group by a.k) where `sum(id)` > 1

-- a b
select a.k, try_sum(b.id), sum(b.id) from a join b on a.id = b.id group by a.k

-- a b
select c.id, q.* from c, lateral (select count(*) from a join b on a.id = b.id where a.id = c.id) q

-- a b
select sum(c.id) from a join b on a.id = b.id join c on c.arr = array(a.id)

-- a b
select count(distinct 4 % 2) from a join b on a.id = b.id

-- a b
select distinct 4 from a join b on a.id = b.id

-- a b
select window.start, b.id, count(*) from a join b on a.id = b.id
group by window(timestamp_seconds(a.id), '3 seconds'), b.id

-- a b
select count(*) + 1, count(1), 'x' from a join b on a.id = b.id where a.k > 1000 having count(*) = 0

-- a b+
select count(*), count(distinct 1), max(2) from a join b on a.id = b.id where a.k > 1000

-- a b+
select 'x', count(*) from a join b on a.id = b.id where a.k > 1000 group by 'x'

-- a b+
select count(*), count_if(true) from a join b on a.id = b.id lateral view explode(array(1, 2)) t as e

-- a b+
select count_if(1 / z > 0) from a join b on a.id = b.id and a.k > 1000 lateral view explode(array(0)) t as z
