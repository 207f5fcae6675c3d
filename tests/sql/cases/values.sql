-- tasks
year(d)
quarter(d)
month(d)
weekofyear(d)
day(d)
dayofmonth(d)
dayofyear(d)
dayofweek(d)
weekday(d)
extract(YEAR FROM d)
extract(week FROM d)
extract(DOY FROM d)
date_add(d, 3)
date_sub(d, 40)
date_add(d, 2147483647)
datediff(d, e)
datediff(e, d)
substring(s, 1, 2)
substr(s, 3)
substring(s, 2, 0)
left(s, 3)
length(s)
length(substring(s, 2, 3))
i % 7
l % 10L
i % 3L
l % 2147483647
b % 3
y % 100
CAST(i AS STRING)
CAST(l AS STRING)
CAST(b AS STRING)
CAST(small + 1 AS STRING)
small + 1
1 - small
small * small
small + i % 5
CAST(i AS BIGINT) + 1
b + 1
n + 1
n * n
1 - n
n * small
x + 1
x * -1
x - x
x + small
CAST(small AS DOUBLE)
CAST(n AS DOUBLE)
x + n
x * 1.1
CAST(price AS DOUBLE)
CASE WHEN s LIKE 'a%' THEN 1 WHEN i > 0 THEN 2 ELSE 3 END
CASE WHEN d >= DATE'1970-01-01' THEN s END
CASE WHEN x > 1 THEN 'big' WHEN x IS NULL THEN NULL ELSE 'small' END
CASE WHEN i IN (1, 7) THEN l ELSE small END
CASE WHEN n < 1 THEN n ELSE 0 END
if(s = 'a', small, NULL)
if(i > 0, year(d), month(d))
coalesce(i, 0)
coalesce(s, 'none')
coalesce(i, small, -5)
nvl(d, DATE'2000-01-01')

-- spark
i + 1 = 2
l * 2 = 4
i / 2 = 0.5
i % 0 = 1
small % b = 1
-i = 7
n / 3 > 1
abs(i) = 7
upper(s) = 'A'
year(s) = 1
substring(s, -1, 1) = 'a'
CASE i WHEN 1 THEN 2 END = 2
CAST(x AS STRING) = 'NaN'
