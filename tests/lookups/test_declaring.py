"""Declaring lookups: what is accepted, what each mistake is told, and that no credentials are written out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import millrace
from millrace.errors import InputError, MillraceError, OptionError
from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.function import function
from millrace.lookups.http import http
from tests.lookups.kinds import failing


def find(*keys):
    """Return nothing."""


VIA = millrace.function(find)
EVERYTHING = millrace.function(find, name="all", scan=True)
URL, FILE, SKU = "http://h/{sku}", "sqlite:///x.db", ("sku",)
TEXT = "sku string, Price double, k int, day date, at timestamp"
TTLS = (0, True, float("inf"))
TERMS = [
    *[(name, value) for name in ("max_in_flight", "batch") for value in (0, -1, 1.5, True, None, "8")],
    *[("retries", value) for value in (-1, 1001, 1.0, True)],
    *[("timeout", value) for value in (0, -1.0, float("inf"), float("nan"), None, True, "5")],
    *[("per_second", value) for value in (0, -1.0, float("inf"), True)],
]
HEADERS = ("Subscription-Key", "Authorization", "proxy-authorization", "COOKIE", "X-Api-Key", "X-Auth-Token")
PRICES = pa.schema([("sku", pa.string()), ("price", pa.float64())])
LARGE = pa.struct([("x", pa.int32()), ("y", pa.large_list(pa.string()))])
NUMBERED = PRICES.append(pa.field("m", pa.map_(pa.int64(), pa.string())))


def table(**given):
    return millrace.lookup(**{"name": "p", "schema": TEXT, "bind": ["sku"], "via": VIA, **given})


def asking(**given):
    return millrace.models.filter(**{"question": "Is {x}?", "model": "m", "base_url": "http://h/v1", **given})


def checked(source, columns=SKU, schema=PRICES):
    source.check(schema, columns, Secrets({"BASE": "nonsense", "LINE": "s3cret\n"}))


@pytest.mark.parametrize(
    "schema",
    [
        "sku string not null comment 'the key', `a b` decimal(10,2), s struct<x: int, y: array<string>>",
        "sku: string, `a b`: decimal(10, 2), s: struct<x: int, y: array<string>>",
        pa.schema({"sku": pa.large_string(), "a b": pa.decimal128(10, 2), "s": LARGE}),
        t.StructType()
        .add("sku", "string")
        .add("a b", "decimal(10,2)")
        .add("s", t.StructType().add("x", "integer").add("y", t.ArrayType(t.StringType()))),
    ],
    ids=["ddl", "colons", "arrow", "spark"],
)
def test_schemas_in_every_form_are_one(schema):
    """Spark's DDL, an Arrow schema and a StructType give the same columns."""
    nested = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.string())))])
    assert table(schema=schema).schema == pa.schema(
        [("sku", pa.string()), ("a b", pa.decimal128(10, 2)), ("s", nested)]
    )


def test_names_have_no_case_and_keep_their_spelling():
    """Bind columns are found as SQL finds columns."""
    named = table(schema="SKU string, Region string", bind=["sku", "REGION"])
    assert named.bind == (("SKU", "Region"),)


def test_each_set_of_bind_columns_is_an_index():
    """One source for all, or one for each; with several the table is a set."""
    other = millrace.function(find, name="other")
    each = table(bind=[["sku"], ["k", "day"]], via=[VIA, other])
    assert [(i.name, i.columns, i.source) for i in each.indexes] == [
        ("p(sku)", ("sku",), VIA),
        ("p(k, day)", ("k", "day"), other),
    ]
    assert each.is_set and not table().is_set
    assert [i.source for i in table(bind=[["sku"], ["k"]]).indexes] == [VIA, VIA]
    scanned = table(scan=["p.parquet", EVERYTHING])
    assert scanned.is_set and scanned.frame == "p.parquet" and scanned.sources == (EVERYTHING,)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: table(name=""), "named '': expected a text"),
        (lambda: table(name=3), "named 3: expected a text"),
        (lambda: table(schema=""), "has no column: expected its schema"),
        (lambda: table(schema="sku"), "cannot be read: expected Spark's DDL"),
        (lambda: table(schema="sku string,"), "cannot be read: expected Spark's DDL"),
        (lambda: table(schema="sku varchar(3)"), "has type VARCHAR(3) (use string)"),
        (lambda: table(schema="sku string, x interval day"), "has type INTERVAL"),
        (lambda: table(schema="sku string, SKU int"), "two columns 'sku' and 'SKU'"),
        (lambda: table(schema=7), "schema is given as int"),
        (lambda: table(schema=pa.schema([("sku", pa.timestamp("ns"))])), "use microseconds"),
        (lambda: table(schema=pa.schema([])), "has no column"),
        (lambda: table(bind="sku"), "expected a list of columns, such as ['sku']"),
        (lambda: table(bind=[]), "bind is empty"),
        (lambda: table(bind=[[]]), "a source that needs no value is a scan"),
        (lambda: table(bind=["sku", ["k"]]), "expected either columns"),
        (lambda: table(bind=[["sku"], [3]]), "expected a list of columns"),
        (lambda: table(bind=["skuu"]), "no column 'skuu' to bind: did you mean 'sku'"),
        (lambda: table(bind=["sku", "SKU"]), "names a column twice"),
        (lambda: table(bind=[["sku", "k"], ["k", "sku"]]), "has (k, sku) twice"),
        (lambda: table(bind=["Price"]), "floating-point numbers need not be written alike"),
        (lambda: table(schema="sku array<int>"), "a nested value is no single key"),
        (lambda: table(schema="sku binary"), "no text form that every source agrees on"),
        (lambda: table(via=find), "via is given as function: expected millrace.http"),
        (lambda: table(via=[VIA, VIA]), "2 sources for 1 sets of bind columns"),
        (lambda: table(scan=VIA), "only answers for keys"),
        (lambda: table(scan=3), "scan is given as int"),
        (lambda: table(scan=["a.parquet", "b.parquet"]), "has 2 scans by path or DataFrame"),
        (
            lambda: table(schema="sku string, x array<int>", scan="a.parquet"),
            "from both have to be found, but column 'x'",
        ),
        (lambda: table(schema="sku string, k int, x map<int,int>", bind=[["sku"], ["k"]]), "several indexes"),
        (lambda: table(on_error="ignore"), "on_error is 'ignore': there is 'fail', 'null', 'skip'"),
        (lambda: table(cache=""), "cache is ''"),
        (lambda: table(between="k"), "between is 'k': expected a list of one column, such as ['t']"),
        (lambda: table(between=["kk"]), "between has 'kk', which is no column: did you mean 'k'?"),
        (lambda: table(between=["price"]), "of type double, which sources order in different ways"),
        (lambda: table(between=["K"], bind=["sku", "k"]), "and so has bind; expected one"),
        (lambda: table(between=["k"], schema="sku string, k int, `K.High` int"), "'k.high', an end"),
        (lambda: table(between=["k"], scan="p.parquet"), "beside a scan or several lists"),
        (lambda: table(between=["k"], bind=[["sku"], ["day"]]), "beside a scan or several lists"),
        (lambda: table(between=["k"], on_error="null"), "a row of nulls lies in no interval"),
        (lambda: table(between=["k"], via=millrace.function(find, batch=2)), "the source batch=2"),
        (lambda: table(between=["k"], via=http(URL)), "lacks the bind column 'k.low': put {k.low}"),
        (lambda: table(ttl=5), "ttl is given without cache"),
        *((lambda ttl=ttl: table(cache="c", ttl=ttl), f"ttl is {ttl}: expected seconds") for ttl in TTLS),
        (lambda: http(""), "expected a text"),
        *((lambda url=url: http(url), "no host to ask") for url in ("ftp://h/{sku}", "/p/{sku}", "h/{sku}")),
        (lambda: table(via=http("http://h/prices")), "lacks the bind column 'sku': put {sku}"),
        (lambda: table(via=http("http://h/{skuu}")), "no bind column: did you mean 'sku'?"),
        (lambda: http("http://h/{sku"), "has a { without its counterpart at position 9"),
        (lambda: http("http://h/sku}"), "has a } without its counterpart"),
        (lambda: http("http://{sku}.h/x"), "a key cannot choose whom to ask"),
        (lambda: http("${BASE}{sku}/x"), "a key cannot choose whom to ask"),
        (lambda: http("http://h/", body={"a": {"b": "{k"}}), "the body has a {"),
        (lambda: http("http://h/", body={"a": object()}), "no JSON value"),
        (lambda: http("http://h/", body=float("nan")), "no JSON value"),
        (
            lambda: http("http://h/", rows="items"),
            "rows is 'items', which is no JSON path: one begins with $",
        ),
        (lambda: http("http://h/", rows="$.items["), "no JSON path (RFC 9535)"),
        (lambda: http("http://h/", next="$.links[*]"), "expected a path to one URL"),
        (lambda: http("http://h/", columns={"price": "a["}), "the path of column 'price'"),
        (lambda: http("http://h/", headers={"a b": "c"}), "'a b' is no name of a header"),
        (lambda: http("http://h/", headers={"a": "b\r\nc: d"}), "header 'a' has a value"),
        (lambda: http("http://h/", headers={"a": "ä"}), "expected visible ASCII"),
        (lambda: http("http://h/", headers={"Content-Length": "5"}), "set by the connection itself"),
        (lambda: http("http://h/", method="PSOT"), "did you mean 'POST'"),
        (lambda: http("http://h/", missing=(4,)), "missing has 4"),
        (lambda: http("http://h/", separator=""), "separator is ''"),
        (lambda: http("http://h/", max_bytes=0), "max_bytes is 0"),
        (lambda: http("http://h/", absent="nul"), "did you mean 'null'"),
        *((lambda each=each: function(find, **dict([each])), f"a lookup: {each[0]} is") for each in TERMS),
        (lambda: function(5), "not a function"),
        (lambda: function(find, retry=1), "unknown setting 'retry': did you mean 'retries'"),
        (lambda: http("http://h/", header={}), "unknown setting 'header': did you mean 'headers'"),
        (lambda: function(find, scan=1), "scan is 1"),
        (lambda: function(find, scan=True, batch=2, retries=1), "batch would do nothing with scan=True"),
        (lambda: checked(VIA, ()), "is no scan"),
        (lambda: table(via=EVERYTHING).check(), "takes no keys"),
        (lambda: checked(http(f"{URL}/{{skuu}}")), "{skuu}, which is no bind column: did you mean 'sku'"),
        (lambda: checked(http(URL), ()), "{sku}, which is no bind column: a scan has none"),
        (lambda: checked(http(URL), ("sku", "price")), "lacks the bind column 'price': put {price} into"),
        (lambda: checked(http(URL, columns={"prize": "x"})), "maps column 'prize', which the lookup lacks"),
        (lambda: checked(http(URL, columns={"price": "$..x"})), "can find several values"),
        (lambda: checked(http("${BASE}/{sku}", check=False)), "has no host to ask"),
        (lambda: checked(http("http:///{sku}", check=False)), "has no host to ask"),
        (lambda: checked(http("http://h:port/{sku}", check=False)), "cannot be used"),
        (lambda: checked(http("${NO}/{sku}", check=False)), "no value for the secret ${NO}"),
        (lambda: millrace.models.lookup("{x}", schema="y int", model="m", base_url="http://h"), "'x'"),
        (lambda: asking(question="Is it?"), "mentions no column"),
        (lambda: asking(question="Is {x.y} even?"), "the prompt has {x.y}, expected a column's name"),
        (lambda: asking(question="Is {x even?"), "cannot be read"),
        (lambda: asking(question=3), "the prompt is a int"),
        (lambda: asking(api_key="sk-s3cret"), "written out: give api_key='${NAME}'"),
        (lambda: asking(base_url="localhost"), "base_url is 'localhost'"),
        (lambda: asking(base_url="https://me:s3cret@host/v1"), "password written out"),
        (lambda: asking(max_tokens=0), "max_tokens is 0"),
        (lambda: asking(batch=None), "batch is None"),
        (lambda: asking(price_read=-1), "price_read is -1"),
        (lambda: asking(tokens_per_minute=0), "tokens_per_minute is 0"),
        (lambda: asking(max_cost=1.0), "max_cost needs prices"),
        # As of a file that was read to its end.
        (lambda: checked(http(URL, headers={"A": "${LINE}"}, check=False)), "line break"),
        # Objects of JSON have texts as keys.
        (lambda: checked(http(URL), schema=NUMBERED), "'m' has a map with keys of type int64"),
    ],
)
def test_what_cannot_be_used(made, said):
    """What was wrong, and what would work, are told at once, or before anything runs; secrets are not."""
    text = failing(made, MillraceError)
    assert said in text and "s3cret" not in text


def test_what_a_check_has_nothing_against():
    """Bind columns in URL or body, a base that is a secret, and braces that are meant."""
    both = http("http://h/{sku}", body=["{price}"], check=False, method="POST")
    both.check(PRICES, ("sku", "price"), Secrets())
    assert both.placeholders == ("sku", "price")
    http("${BASE}/{sku}?f={{x}}", check=False).check(PRICES, SKU, Secrets({"BASE": "https://h:8080/v1"}))


@pytest.mark.parametrize("made", [http, database, function])
def test_terms_bind_columns_and_types_are_checked(made):
    """Of every kind of source, where it is declared, or before anything runs, and without a request."""
    given = {http: (URL,), database: (FILE, "t"), function: (find,)}[made]

    def says(column, kind):
        schema = pa.schema([("sku", kind)])
        return failing(lambda: checked(made(*given), (column,), schema), MillraceError)

    assert "a lookup: timeout is -1" in failing(lambda: made(*given, timeout=-1), OptionError)
    assert "binds column 'skuu', which it lacks: did you mean 'sku'" in says("skuu", pa.string())
    assert "not a single value" in says("sku", pa.list_(pa.field("element", pa.int64())))
    assert "column 'sku'" in says("sku", pa.large_string())


@pytest.mark.parametrize(
    "made",
    [
        lambda: http("https://user:pa55word@h/{sku}"),
        lambda: http("https://h/{sku}?api_key=pa55word"),
        lambda: http("https://h/{sku}?access_token=pa55word&x={sku}"),
        lambda: http("https://h/{sku}?sig=pa55word%2Bpa55word%3D"),
        lambda: http("https://h/{sku}?key=pa55wordpa55word"),
        *(lambda name=name: http("https://h/{sku}", headers={name: "Some pa55word"}) for name in HEADERS),
        lambda: http("https://h/{sku}", body={"auth": [{"password": "pa55word"}]}),
        lambda: database("postgresql://u:pa55word@h/d", "t"),
        lambda: database("postgresql://u@h/d?password=pa55word", "t"),
        lambda: database("postgresql://u@h/d", "t", connect_args={"password": "pa55word"}),
        lambda: database("mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BO%7D%3BUID%3Dme%3BPWD%3Dpa55word", "t"),
    ],
)
def test_credentials_are_not_written_out(made):
    """They would be in every plan; the error says what to write instead, and not the credentials."""
    text = failing(made, InputError)
    assert "${" in text and "pa55word" not in text


def test_what_only_looks_like_credentials_is_well():
    """Secrets by name, keys, and users without a password."""
    source = http(
        "https://user:${PW}@h/{sku}?token={sku}&api_key=${KEY}&key=5&sort=token",
        headers={"Authorization": "Bearer ${TOKEN}", "Accept-Language": "de"},
        body={"token": "${TOKEN}", "key": "x", "password": "{sku}"},
    )
    assert source.secrets == ("PW", "KEY", "TOKEN")
    assert http("https://user@h/{sku}").secrets == ()
    assert database("mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC%7D%3BPWD%3D${PW}", "t").secrets == ("PW",)
