select a.id from a, b where a.k = b.k and a.d = '1995-01-02'

select a.id from a, b where a.k = b.k and a.d = 'no date'

select a.id from a, b where a.k = b.k and a.id = '2'

select a.id from a, b where a.k = b.k and a.x > 1.25

select a.id from a, b where a.k = b.k and a.s = cast(null as string)

select a.id from a, b where a.k = b.k and a.id in (1, 2.0)

select a.id from a, b where a.k = b.k and a.d in ('1995-01-02', date '1995-01-01')

select a.id from a, b where a.k = b.k and a.id > 1 / 0

select a.id from a, b where a.k = b.k and a.n = 1.5D
