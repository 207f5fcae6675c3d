select a.id from a, b where a.k = b.k and a.d = '1995-01-02'

select a.id from a, b where a.k = b.k and a.d = 'no date'

select a.id from a, b where a.k = b.k and a.id = '2'

select a.id from a, b where a.k = b.k and a.x > 1.25

select a.id from a, b where a.k = b.k and a.s = cast(null as string)

select a.id from a, b where a.k = b.k and a.id in (1, 2.0)

select a.id from a, b where a.k = b.k and a.d in ('1995-01-02', date '1995-01-01')

select a.id from a, b where a.k = b.k and a.id > 1 / 0

select a.id from a, b where a.k = b.k and a.n = 1.5D

-- a b+ / a b+
select a.k, sum(a.big) from (select id, k, 9223372036854775800 + id as big, cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a join b on a.id = b.id group by a.k

-- a b+ / a b+
select a.k, sum(a.wide) from (select id, k, 9223372036854775800 + id as big, cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a join b on a.id = b.id group by a.k

-- a b / a b
select a.k, sum(a.big), sum(a.wide), avg(a.big), min(a.wide), max(a.wide), sum(a.fine), sum(-a.big), count(*) from (select id, k, 9223372036854775800 + id as big, cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a join b on a.id = b.id group by a.k

-- a b+ / a b+
select a.k, sum(a.big), sum(a.wide), avg(a.big), min(a.wide), max(a.wide), sum(a.fine), count(*) from (select id, k, 9223372036854775800 + id as big, cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a join b on a.id = b.id group by a.k

-- a b+ / a b+
select b.id, sum(a.big), max(a.wide), count(a.wide) from (select id, k, 9223372036854775800 + id as big, cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a join b on a.k = b.k and a.id = b.id and a.id > 2 group by b.id

select a.id from a join b on a.id + 2147483647 <=> b.id

select a.id from a join b on coalesce(a.id + 2147483647, 0) = b.id

select a.id from a join b on (a.id + 2147483647 is null) = (b.id = 2)
