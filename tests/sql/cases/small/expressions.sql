-- a b
select a.id, b.v from a join b on a.k = b.k + 10

-- a b
select a.id, b.v from a join b on a.k = b.k - 10 and a.id = b.id

-- a b
select a.id, b.v from a join b on upper(a.s) = upper(b.s)

-- a q
select a.id, q.n from a join (select id, count(*) n from b group by id) q on a.id + 1 = q.id

-- v u b
with w as (select id, k, sum(x) sx from a group by id, k) select v.id, u.sx from w v join w u on v.id = u.id + 1 join b on b.id = v.id

-- a c
select a.id, c.st.f from a join c on a.id = c.st.f and substring(a.s, 1, 1) = c.st.g

-- a b
select a.id, b.id from a join b on year(a.d) = year(b.d) where a.id > b.id * 2

-- a b
select a.id, b.id from a join b on coalesce(a.id, 0) = coalesce(b.id, 0)

-- a b
select a.id, b.id from a join b on case when a.k > 15 then a.id else a.id + 1 end = b.id

-- a b
select a.id, b.id from a join b on a.d = b.d + interval '1' day

-- a b
select a.id, b.id from a join b on a.d = date_add(b.d, 1) and a.id <= b.id

-- a b
select a.id, b.id from a join b on a.id = b.id and a.x * 2 > b.v

-- a b
select a.id, b.id from a join b on a.id = b.id and (upper(a.s) = 'X' or b.v > 3)

-- a b
select a.id, b.id from a join b on a.n * 2 = b.n

-- a b
select a.id, b.id from a join b on a.k / 10 = b.k / 10

-- a b
select a.id, b.id from a join b on a.s || 'x' = concat(b.s, 'x')

-- a b
select a.id, b.id from a join b on cast(a.id as string) = b.s

-- a b
select a.id, b.id from a join b on a.id = b.id and a.s = cast(b.k as string)

-- a b
select a.id, b.id from a join b on a.id = b.id and a.n <=> b.n

-- a b
select a.id, b.id from a join b on length(a.s) = b.id and a.k % 3 = b.k % 3

-- a b
select a.id, b.id, c.id from a join b on a.id = b.id join c on c.id = a.id + b.id

-- a b
select a.id + 1 as z, b.id from a join b on a.id + 1 = b.id where a.id + 1 < 4

-- a b
select a.id, b.id from a join b on a.id = b.id and a.k + b.k = 30

-- none
select a.id, b.id from a join b on a.k = b.k and abs(a.id) = b.id

-- none
select a.id, b.id from a join b on a.k <=> b.k

-- a b c
select a.id, b.id, c.w from a join b on a.id = b.id join c on c.id = a.id and c.k <=> b.k and a.k + 0 = c.k

-- a b
select a.id, b.id from a join b on a.id + b.id = 3 and a.k = b.k

-- q b
select q.z, b.id from (select cast(id as double) / 0.5 as z, k from a) q join b on q.z = b.id * 2 and q.k % 20 = b.k % 20

-- a b
select a.id, b.id from a join b on int(a.id) = b.id and a.k = b.k

-- a b
select a.id from a join b on left(a.s, 1) = right(b.s, 1) and a.d >= add_months(b.d, -1)

-- a b c
select a.id from a, b, c where a.id = b.id - 1 and b.id = c.id - 1 and c.w like 'p%'

-- a b
select a.id from a join b on a.id = 2147483647 - b.id - 2147483644
