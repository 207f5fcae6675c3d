"""Settings of a session that change what a text means: the answer is Spark's under each of them."""

from __future__ import annotations

import pytest

from millrace import query
from tests.sql.compare import bag

pytestmark = pytest.mark.spark

TABLES = {
    "sa": "VALUES (1, 'x', DATE'2020-01-01', 0.5BD, 'a\\\\'), (2, 'y', DATE'12020-01-01', 1.5BD, 'b'), "
    "(2, 'y', DATE'2020-01-01', 2.5BD, 'a') AS t(id, s, d, n, p)",
    "sb": "VALUES (1, 10, CAST(0 AS DECIMAL(38, 37))), "
    "(2, 20, CAST('1.0000000000000000000000000000000000001' AS DECIMAL(38, 37))), "
    "(2, 20, CAST(NULL AS DECIMAL(38, 37))) AS t(id, v, w)",
    "sn": "VALUES (1), (NULL) AS t(id)",
}
ON = "FROM sa a JOIN sb b ON a.id = b.id"

CASES = [
    ("spark.sql.caseSensitive=true", "SELECT a.id AS k, b.v AS K FROM sa a JOIN sb A ON a.id = A.id"),
    ("spark.sql.parser.quotedRegexColumnNames=true", f"SELECT `.` {ON}"),
    ("spark.sql.ansi.doubleQuotedIdentifiers=true", f'SELECT a.id {ON} AND "s" = \'x\''),
    ("spark.sql.ansi.relationPrecedence=true", "SELECT a.id, b.v FROM sn n, sa a LEFT JOIN sb b ON n.id = 1"),
    ("spark.sql.ansi.enabled=false", f"SELECT a.id {ON} AND a.s = 1"),
    ("spark.sql.orderByOrdinal=false", f"SELECT a.id {ON} ORDER BY 7"),
    ("spark.sql.groupByOrdinal=false", f"SELECT count(*) {ON} WHERE a.id > 7 GROUP BY 1"),
    ("spark.sql.groupByAliases=false", f"SELECT a.id + 1 AS k, count(*) {ON} GROUP BY k"),
    ("spark.sql.lateralColumnAlias.enableImplicitResolution=false", f"SELECT a.id AS k, k + 1 {ON}"),
    ("spark.sql.crossJoin.enabled=false", "SELECT a.id, b.v FROM sa a, sb b"),
    ("spark.sql.variable.substitute=false", f"SELECT '${{spark.sql.ansi.enabled}}' AS x, a.id {ON}"),
    ("spark.sql.timestampType=TIMESTAMP_NTZ", f"SELECT a.id, TIMESTAMP'2020-01-01 00:00:00' AS t {ON}"),
    ("spark.sql.parser.escapedStringLiterals=true", f"SELECT a.id {ON} AND a.p = 'a\\\\'"),
    ("spark.sql.parser.escapedStringLiterals=true", f"SELECT a.id, '\\t' AS x {ON} AND a.p LIKE 'a\\\\%'"),
    ("spark.sql.preserveCharVarcharTypeInfo=true", f"SELECT a.id {ON} AND CAST(a.s AS CHAR(3)) = 'x  '"),
    ("spark.sql.parser.singleCharacterPipeOperator.enabled=false", f"SELECT a.id {ON} | LIMIT 1"),
    ("spark.sql.legacy.consecutiveStringLiterals.enabled=true", f"SELECT a.id, 'x''y' AS t {ON}"),
    ("spark.sql.legacy.parser.havingWithoutGroupByAsWhere=true", f"SELECT b.v {ON} HAVING b.v > 5"),
    ("spark.sql.legacy.setopsPrecedence.enabled=true",
     f"SELECT a.id {ON} UNION ALL SELECT 1 INTERSECT SELECT a.id {ON} WHERE a.id = 2"),
    ("spark.sql.legacy.ctePrecedencePolicy=LEGACY",
     (f"WITH t AS (SELECT 1 AS k) SELECT a.id, b.v {ON} "
     "AND a.id IN (WITH t AS (SELECT 2 AS k) SELECT k FROM t)")),
    ("spark.sql.legacy.exponentLiteralAsDecimal.enabled=true", f"SELECT a.id, 2e0 AS x {ON} AND b.v > 1e1"),
    ("spark.sql.legacy.literal.pickMinimumPrecision=false", f"SELECT a.id {ON} AND b.w > 1"),
    ("spark.sql.legacy.decimal.retainFractionDigitsOnTruncate=true",
     f"SELECT a.id {ON} AND b.w = a.n * 100000000000"),
    ("spark.sql.decimalOperations.allowPrecisionLoss=false", f"SELECT a.id, sum(b.w * a.n) {ON} GROUP BY 1"),
    ("spark.sql.legacy.allowNegativeScaleOfDecimal=true", f"SELECT a.id, a.n * 1E3BD AS x {ON}"),
    ("spark.sql.legacy.interval.enabled=true", f"SELECT a.id, INTERVAL '1' DAY AS i {ON}"),
    ("spark.sql.ansi.enabled=false;spark.sql.legacy.typeCoercion.datetimeToString.enabled=true",
     f"SELECT a.id, b.v {ON} AND a.d > '2021-01-01'"),
    ("spark.sql.legacy.bangEqualsNot=true", f"SELECT a.id, b.v {ON} AND a.id ! IN (1)"),
    ("spark.sql.legacy.allowStarWithSingleTableIdentifierInCount=true",
     f"SELECT a.id, count(b.*) {ON} GROUP BY a.id"),
    ("spark.sql.legacy.allowParameterlessCount=true", f"SELECT a.id, count() {ON} GROUP BY a.id"),
    ("spark.sql.legacy.nullInEmptyListBehavior=true",
     f"SELECT a.id, NULL IN (SELECT 1 WHERE false) AS x {ON}"),
    ("spark.sql.optimizer.decorrelateExistsSubqueryLegacyIncorrectCountHandling.enabled=true",
     "SELECT a.id FROM sa a WHERE EXISTS (SELECT count(*) FROM sb b WHERE b.id = a.id + 5)"),
    ("spark.sql.functionResolution.sessionOrder=first", f"SELECT a.id {ON} AND year(a.d) = 7"),
    ("spark.sql.functionResolution.sessionOrder=first",
     f"SELECT a.id, sum(b.v) AS x {ON} AND length(a.s) = 7 GROUP BY a.id"),
    ("spark.sql.path.enabled=true;spark.sql.defaultPath=system.session, system.builtin",
     f"SELECT a.id {ON} AND year(a.d) = 7"),
]  # fmt: skip


def _answer(run):
    try:
        frame = run()
        return frame.dtypes, bag(frame)
    except Exception as error:  # noqa: BLE001  # whatever Spark raises
        condition = getattr(error, "getCondition", lambda: None)()
        return condition or type(error).__name__


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory):
    """Views, and functions of the session by names of Spark's own."""
    for name, text in TABLES.items():
        path = str(tmp_path_factory.mktemp("settings") / name)
        spark.sql(f"SELECT * FROM {text}").write.parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)
    for name, kind in (("year", "DATE"), ("length", "STRING")):
        spark.sql(f"CREATE TEMPORARY FUNCTION {name}(x {kind}) RETURNS INT RETURN 7")
    yield
    for name in TABLES:
        spark.catalog.dropTempView(name)
    for name in ("year", "length"):
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")


@pytest.mark.parametrize(
    ("settings", "text"), CASES, ids=[setting.removeprefix("spark.sql.") for setting, _ in CASES]
)
def test_an_answer_under_a_setting_is_sparks(spark, tables, settings, text):
    """Without the setting it is another one, or an error."""
    default = _answer(lambda: spark.sql(text))
    pairs = [pair.split("=") for pair in settings.split(";")]
    before = {key: spark.conf.get(key, None) for key, _ in pairs}
    try:
        for key, value in pairs:
            spark.conf.set(key, value)
        expected = _answer(lambda: spark.sql(text))
        found = _answer(lambda: query(text, spark=spark, options={"take_all": True}).df)
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    assert found == expected
    assert expected != default
