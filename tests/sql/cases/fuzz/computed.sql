-- bool
NOT {bool}
coalesce({bool}, false)
{bool} AND {bool}
({bool} OR {bool})

-- int
{int} + {lit}
{int} - {int}
{int} * {lit}
-{int}
coalesce({int}, {int})
coalesce({int}, {lit}, 0)
length({string})
size({array})
year({date})
CAST({int} AS bigint)
{int} % 2
if({bool}, {int}, {lit})
CASE WHEN {bool} THEN {int} END
CASE {string} WHEN 'x' THEN {int} ELSE {lit} END
nullif({int}, {lit})
greatest({int}, {int})
{int} DIV 2
get({array}, 0)
try_divide({int}, 0)
{int}::int
char_length({string})
extract(year FROM {date})

-- real
{real} + 1
CAST({int} AS double)
{real} * 2
coalesce({real}, 0.0D)
{int} / 2.0D

-- decimal
{decimal} + 1.5
CAST({int} AS decimal(10, 2))
coalesce({decimal}, 0)
{decimal} - {int}

-- string
upper({string})
concat({string}, '{{x}}')
{string} || {string}
CAST({int} AS string)
substring({string}, 1, 1)
substring({string} FROM 1 FOR 1)
coalesce({string}, 'x')
CASE WHEN {bool} THEN {string} ELSE 'none' END
trim(BOTH 'x' FROM {string})
to_json({struct})
CAST({decimal} AS string)
typeof({int})
decode({int}, 1, 'x', 2, 'y')
replace({string}, 'x', 'y')
format_number({int}, 0)

-- date
date_add({date}, {lit})
CAST({timestamp} AS date)
coalesce({date}, DATE '1995-01-01')

-- timestamp
CAST({date} AS timestamp)
{timestamp} + INTERVAL '1' DAY

-- ntz
{ntz} + INTERVAL 1 DAY

-- binary
CAST({string} AS binary)
coalesce({binary}, X'78')
