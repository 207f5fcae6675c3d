-- a b
select a.id from a, b where a.id = b.id and a.s = 'it''s {x}'

-- a b
select 'it''s {x} {{y}} }' as t, a.s from a, b where a.s = b.s

-- a b
select a.s from a, b where a.k = b.k and a.s like '%{x}'

-- a b
select a.s from a, b where a.k = b.k and a.s = "x"

-- a b
select a.s from a, b where a.k = b.k and a.s like 'i%' and a.s not like '%z%'

-- a b
select a.s from a, b where a.k = b.k and a.s like 'it\'s%'

-- a b
select a.s from a, b where a.k = b.k and a.s = 'it\'s {x}'

-- a b
select a.id from a, b where a.k = b.k and a.flag

-- a b
select a.id from a, b where a.k = b.k and not a.flag and a.x is not null

-- a b
select a.id from a, b where a.k = b.k and a.x > 0

-- a b
select a.id from a, b where a.k = b.k and a.x >= 0.0 and a.x <> 2.5

-- a b
select a.id from a, b where a.k = b.k and a.n between 1 and 2.00

-- a b
select a.id from a, b where a.k = b.k and a.n in (1.5, 2, 3.000)

-- a b
select a.id from a, b where a.k = b.k and a.id in (1, 2, null)

-- a b
select a.id from a, b where a.k = b.k and a.id not in (1, null)

-- a b
select a.id from a, b where a.k = b.k and a.id not in (1, 5)

-- a b
select a.id from a, b where a.k = b.k and a.id in (1, '2')

-- a b
select a.id from a, b where a.k = b.k and a.id > 1.5

-- a b
select a.id from a, b where a.k = b.k and a.k < 3000000000

-- a b
select a.id from a, b where a.k = b.k and a.id = '1'

-- a b
select a.d from a, b where a.k = b.k and a.d >= '1995-01-02'

-- a b
select a.d from a, b where a.k = b.k and a.d = '1995-1-2'

-- a b
select a.d from a, b where a.k = b.k and a.d between date '1995-01-01' and date '1995-01-01' + interval 1 day

-- a b
select a.d from a, b where a.k = b.k and a.d < date '1994-02-28' + interval '1' year - interval '2' month

-- a b
select a.d from a, b where a.k = b.k and a.d < cast('1995-01-03' as date)

-- a b
select a.d from a, b where a.k = b.k and a.d < timestamp '1995-01-03 00:00:00'

-- a b
select a.id from a, b where a.k = b.k and 1 = 1 and true

-- a b
select a.id from a, b where a.k = b.k and null

-- a b
select a.id from a, b where a.k = b.k and a.id = null

-- a b
select a.id from a, b where a.k = b.k and (a.id = 1 or b.id = 2)

-- a b
select a.id from a, b where (a.k = b.k and a.id = 1) or (a.k = b.k and b.id = 2)

-- a b
select a.id from a, b where (a.k = b.k and a.id = 1) or (a.k = b.k and a.id > 3 and b.id < 9)

-- a b
select a.id from a, b where (a.k = b.k and upper(a.s) = 'X') or (a.k = b.k and b.id = 2)

-- a b
select a.id from a, b where (a.k = b.k and a.id < b.id) or (a.k = b.k and a.id < b.id and b.id = 2)

-- a b
select a.id from a, b where a.k = b.k and upper(a.s) = 'X'

-- a b
select a.id from a, b where a.k = b.k and a.id + b.id > 3

-- a b
select a.id from a, b where a.k = b.k and a.x > b.v

-- a b
select a.id from a, b where a.k = b.k and not (a.id = b.id and a.s = b.s)

-- a b
select a.id from a, b where a.k = b.k and a.d is distinct from b.d

-- a b
select a.id from a, b where a.k = b.k and a.id % 2 = 1

-- a b
select a.id from a, b where a.k = b.k and case when a.id = 1 then true else b.id > 1 end

-- a b
select '{t0} {{t1}}' as t, a.id from a, b where a.k = b.k and a.s <> '{b2}'

-- a b
select a.id, b.v from a, b where a.id = b.id and (a.k <> 11 and (a.k <> 12 and (a.k <> 13 and (a.k <> 14 and (a.k <> 15 and (a.k <> 16 and (a.k <> 17 and (a.k <> 18 and (a.k <> 19 and (a.k <> 20 and (a.k <> 21 and (a.k <> 22 and (a.k <> 23 and (a.k <> 24 and (a.k <> 25 and (a.k <> 26 and (a.k <> 27 and (a.k <> 28 and (a.k <> 29 and (a.k <> 30 and (a.k <> 31 and (a.k <> 32 and (a.k <> 33 and (a.k <> 34 and (a.k <> 35 and (a.k <> 36 and (a.k <> 37 and (a.k <> 38 and (a.k <> 39 and (a.k <> 40))))))))))))))))))))))))))))))

-- a b
select a.id, b.v from a, b where a.id = b.id and (a.k = 11 or (a.k = 12 or (a.k = 13 or (a.k = 14 or (a.k = 15 or (a.k = 16 or (a.k = 17 or (a.k = 18 or (a.k = 19 or (a.k = 20 or (a.k = 21 or (a.k = 22 or (a.k = 23 or (a.k = 24 or (a.k = 25 or (a.k = 26 or (a.k = 27 or (a.k = 28 or (a.k = 29 or (a.k = 30 or (a.k = 31 or (a.k = 32 or (a.k = 33 or (a.k = 34 or (a.k = 35 or (a.k = 36 or (a.k = 37 or (a.k = 38 or (a.k = 39 or (a.k = 40))))))))))))))))))))))))))))))
