-- any
{a} = {a}
{a} <=> {a}
{a} < {a}
{a} >= {lit}
{a} <> {lit}
{a} = {lit}
{lit} = {a}
{a} != {a}
{a} IN ({lit}, {lit})
{a} NOT IN ({lit}, {lit})
{a} IN ({lit}, {a})
{a} BETWEEN {lit} AND {lit}
{a} NOT BETWEEN {lit} AND {a}
{a} IS NULL
{a} IS NOT NULL
{a} IS DISTINCT FROM {a}
{a} IS NOT DISTINCT FROM {lit}
NOT ({a} = {a})
NOT {a} = {lit}
{a} = {lit} OR {a} = {lit}
({a} > {lit}) IS TRUE
coalesce({a}, {lit}) = {lit}
CASE WHEN {a} = {lit} THEN true ELSE {a} IS NULL END

-- texts
{a} LIKE '%x%'
{a} LIKE 'it''s%'
{a} NOT LIKE 'x_'
{a} RLIKE '^[xy]'
{a} ILIKE 'X%'
length({a}) > 0
upper({a}) = upper({a})
{a} LIKE ANY ('x%', '%y')
startswith({a}, 'x')
{a} LIKE '{{x}}'
contains({a}, {a})

-- times
{a} < current_date()
current_timestamp() >= {a}
{a} > DATE '1994-12-31' + INTERVAL '1' DAY
year({a}) = 1995
{a} <= DATE '1995-01-31' - INTERVAL '1' MONTH
{a} < now()
{a} < DATE '+10000-01-01'

-- constant
1 = 1
true
1 < 2 AND 2 < 3
NOT false
'x' = 'x'
1 = 2
(NULL AND true)
