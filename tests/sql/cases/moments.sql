-- 2
DATE 'today'
CAST('today' AS DATE)
CAST(' Yesterday UTC' AS DATE) + INTERVAL '1' DAY
to_date(concat('to', 'day'))
CAST(:word AS DATE)
CAST(TIMESTAMP '12:30' AS DATE)

-- 1
DATE '2020-01-01'
CAST(CAST('2020-01-01 10:00:00' AS TIMESTAMP) AS DATE)
:day
