-- spark.sql.caseSensitive=true
SELECT a.id AS k, b.v AS K FROM sa a JOIN sb A ON a.id = A.id

-- spark.sql.parser.quotedRegexColumnNames=true
SELECT `.` FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.ansi.doubleQuotedIdentifiers=true
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND "s" = 'x'

-- spark.sql.ansi.relationPrecedence=true
SELECT a.id, b.v FROM sn n, sa a LEFT JOIN sb b ON n.id = 1

-- spark.sql.ansi.enabled=false
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND a.s = 1

-- spark.sql.orderByOrdinal=false
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id ORDER BY 7

-- spark.sql.groupByOrdinal=false
SELECT count(*) FROM sa a JOIN sb b ON a.id = b.id WHERE a.id > 7 GROUP BY 1

-- spark.sql.groupByAliases=false
SELECT a.id + 1 AS k, count(*) FROM sa a JOIN sb b ON a.id = b.id GROUP BY k

-- spark.sql.lateralColumnAlias.enableImplicitResolution=false
SELECT a.id AS k, k + 1 FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.crossJoin.enabled=false
SELECT a.id, b.v FROM sa a, sb b

-- spark.sql.variable.substitute=false
SELECT '${spark.sql.ansi.enabled}' AS x, a.id FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.timestampType=TIMESTAMP_NTZ
SELECT a.id, TIMESTAMP'2020-01-01 00:00:00' AS t FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.parser.escapedStringLiterals=true
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND a.p = 'a\\'

-- spark.sql.parser.escapedStringLiterals=true
SELECT a.id, '\t' AS x FROM sa a JOIN sb b ON a.id = b.id AND a.p LIKE 'a\\%'

-- spark.sql.preserveCharVarcharTypeInfo=true
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND CAST(a.s AS CHAR(3)) = 'x  '

-- spark.sql.parser.singleCharacterPipeOperator.enabled=false
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id | LIMIT 1

-- spark.sql.legacy.consecutiveStringLiterals.enabled=true
SELECT a.id, 'x''y' AS t FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.legacy.parser.havingWithoutGroupByAsWhere=true
SELECT b.v FROM sa a JOIN sb b ON a.id = b.id HAVING b.v > 5

-- spark.sql.legacy.setopsPrecedence.enabled=true
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id UNION ALL SELECT 1 INTERSECT SELECT a.id FROM sa a JOIN sb b ON a.id = b.id WHERE a.id = 2

-- spark.sql.legacy.ctePrecedencePolicy=LEGACY
WITH t AS (SELECT 1 AS k) SELECT a.id, b.v FROM sa a JOIN sb b ON a.id = b.id AND a.id IN (WITH t AS (SELECT 2 AS k) SELECT k FROM t)

-- spark.sql.legacy.exponentLiteralAsDecimal.enabled=true
SELECT a.id, 2e0 AS x FROM sa a JOIN sb b ON a.id = b.id AND b.v > 1e1

-- spark.sql.legacy.literal.pickMinimumPrecision=false
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND b.w > 1

-- spark.sql.legacy.decimal.retainFractionDigitsOnTruncate=true
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND b.w = a.n * 100000000000

-- spark.sql.decimalOperations.allowPrecisionLoss=false
SELECT a.id, sum(b.w * a.n) FROM sa a JOIN sb b ON a.id = b.id GROUP BY 1

-- spark.sql.legacy.allowNegativeScaleOfDecimal=true
SELECT a.id, a.n * 1E3BD AS x FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.legacy.interval.enabled=true
SELECT a.id, INTERVAL '1' DAY AS i FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.ansi.enabled=false;spark.sql.legacy.typeCoercion.datetimeToString.enabled=true
SELECT a.id, b.v FROM sa a JOIN sb b ON a.id = b.id AND a.d > '2021-01-01'

-- spark.sql.legacy.bangEqualsNot=true
SELECT a.id, b.v FROM sa a JOIN sb b ON a.id = b.id AND a.id ! IN (1)

-- spark.sql.legacy.allowStarWithSingleTableIdentifierInCount=true
SELECT a.id, count(b.*) FROM sa a JOIN sb b ON a.id = b.id GROUP BY a.id

-- spark.sql.legacy.allowParameterlessCount=true
SELECT a.id, count() FROM sa a JOIN sb b ON a.id = b.id GROUP BY a.id

-- spark.sql.legacy.nullInEmptyListBehavior=true
SELECT a.id, NULL IN (SELECT 1 WHERE false) AS x FROM sa a JOIN sb b ON a.id = b.id

-- spark.sql.optimizer.decorrelateExistsSubqueryLegacyIncorrectCountHandling.enabled=true
SELECT a.id FROM sa a WHERE EXISTS (SELECT count(*) FROM sb b WHERE b.id = a.id + 5)

-- spark.sql.functionResolution.sessionOrder=first
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND year(a.d) = 7

-- spark.sql.functionResolution.sessionOrder=first
SELECT a.id, sum(b.v) AS x FROM sa a JOIN sb b ON a.id = b.id AND length(a.s) = 7 GROUP BY a.id

-- spark.sql.path.enabled=true;spark.sql.defaultPath=system.session, system.builtin
SELECT a.id FROM sa a JOIN sb b ON a.id = b.id AND year(a.d) = 7

-- spark.sql.session.timeZone=America/New_York
SELECT a.id, b.v FROM (SELECT id, TIMESTAMP'2020-01-01 05:00:00 UTC' AS t FROM sa) a JOIN sb b ON a.id = b.id AND a.t = '2020-01-01 00:00:00'
