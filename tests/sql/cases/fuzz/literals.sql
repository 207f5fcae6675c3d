-- bool
true
false
CAST(NULL AS boolean)

-- int
1
2
3
4
0
1L
2S
-1
CAST(NULL AS int)
1 + 1
int('2')

-- real
1.5D
0.0D
CAST('NaN' AS double)
2.0F
-0.0D
1e0

-- decimal
1.50
2.00
9.99
2
0.0

-- string
'x'
'y'
'it''s {x}'
"x"
''
'zz'
'a.id'
r'x'
'p' 'q'
'it\'s {x}'
lower('X')

-- digits
'1'
'2'
"3"

-- binary
X'78'
CAST('x' AS binary)

-- date
DATE '1995-01-01'
DATE '1995-1-2'
date'1996-02-29'
CAST('1995-02-28' AS date)
DATE '1995-01-01' + INTERVAL '1' DAY

-- timestamp
TIMESTAMP '1995-01-01 00:00:00'
timestamp'1995-01-02T12:30:00'

-- ntz
TIMESTAMP_NTZ '1995-01-02 12:30:00'

-- large
9223372036854775807
4611686018427387904
