"""Declaring lookup tables: what is accepted, and what each mistake is told."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import millrace
from millrace.errors import InputError, OptionError


def find(*keys):
    """Return nothing."""


VIA = millrace.function(find)
EVERYTHING = millrace.function(find, name="all", scan=True)
TTLS = (0, True, float("inf"))
TEXT = "sku string, Price double, k int, day date, at timestamp"


@pytest.mark.parametrize(
    "schema",
    [
        "sku string not null comment 'the key', `a b` decimal(10,2), s struct<x: int, y: array<string>>",
        "sku: string, `a b`: decimal(10, 2), s: struct<x: int, y: array<string>>",
        pa.schema(
            [
                ("sku", pa.large_string()),
                ("a b", pa.decimal128(10, 2)),
                ("s", pa.struct([("x", pa.int32()), ("y", pa.large_list(pa.string()))])),
            ]
        ),
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
    table = millrace.lookup("p", schema, ["sku"], VIA)
    assert table.schema == pa.schema([("sku", pa.string()), ("a b", pa.decimal128(10, 2)), ("s", nested)])


def test_names_have_no_case_and_keep_their_spelling():
    """Bind columns are found as SQL finds columns."""
    assert millrace.lookup("p", "SKU string, Region string", ["sku", "REGION"], VIA).bind == (
        ("SKU", "Region"),
    )


def test_each_set_of_bind_columns_is_an_index():
    """One source for all, or one for each; with several the table is a set."""
    other = millrace.function(find, name="other")
    table = millrace.lookup("p", TEXT, [["sku"], ["k", "day"]], [VIA, other])
    assert [(i.name, i.columns, i.source) for i in table.indexes()] == [
        ("p(sku)", ("sku",), VIA),
        ("p(k, day)", ("k", "day"), other),
    ]
    assert table.is_set and not millrace.lookup("p", TEXT, ["sku"], VIA).is_set
    assert millrace.lookup("p", TEXT, [["sku"], ["k"]], VIA).via == (VIA, VIA)
    scanned = millrace.lookup("p", TEXT, ["sku"], VIA, scan=["p.parquet", EVERYTHING])
    assert scanned.is_set and scanned.frame == "p.parquet" and scanned.sources == (EVERYTHING,)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "named '': expected a text"),
        ({"name": 3}, "named 3: expected a text"),
        ({"schema": ""}, "has no column: expected its schema"),
        ({"schema": "sku"}, "cannot be read: expected Spark's DDL"),
        ({"schema": "sku string,"}, "cannot be read: expected Spark's DDL"),
        ({"schema": "sku varchar(3)"}, r"has type VARCHAR\(3\) \(use string\)"),
        ({"schema": "sku string, x interval day"}, "has type INTERVAL"),
        ({"schema": "sku string, SKU int"}, "two columns 'sku' and 'SKU'"),
        ({"schema": 7}, "schema is given as int"),
        ({"schema": pa.schema([("sku", pa.timestamp("ns"))])}, "use microseconds"),
        ({"schema": pa.schema([])}, "has no column"),
        ({"bind": "sku"}, r"expected a list of columns, such as \['sku'\]"),
        ({"bind": []}, "bind is empty"),
        ({"bind": [[]]}, "a source that needs no value is a scan"),
        ({"bind": ["sku", ["k"]]}, "expected either columns"),
        ({"bind": [["sku"], [3]]}, "expected a list of columns"),
        ({"bind": ["skuu"]}, "no column 'skuu' to bind: did you mean 'sku'"),
        ({"bind": ["sku", "SKU"]}, "names a column twice"),
        ({"bind": [["sku", "k"], ["k", "sku"]]}, r"has \(k, sku\) twice"),
        ({"bind": ["Price"]}, "floating-point numbers need not be written alike"),
        ({"schema": "sku array<int>"}, "a nested value is no single key"),
        ({"schema": "sku binary"}, "no text form that every source agrees on"),
        ({"via": find}, "via is given as function: expected millrace.http"),
        ({"via": [VIA, VIA]}, "2 sources for 1 sets of bind columns"),
        ({"scan": VIA}, "only answers for keys"),
        ({"scan": 3}, "scan is given as int"),
        ({"scan": ["a.parquet", "b.parquet"]}, "has 2 scans by path or DataFrame"),
        ({"schema": "sku string, x array<int>", "scan": "a.parquet"}, "a scan beside its index.*column 'x'"),
        ({"schema": "sku string, k int, x map<int,int>", "bind": [["sku"], ["k"]]}, "several indexes.*'x'"),
        ({"on_error": "ignore"}, "on_error is 'ignore': there is 'fail', 'null', 'skip'"),
        ({"cache": ""}, "cache is ''"),
        ({"cache": 3}, "cache is 3"),
        ({"ttl": 5}, "ttl is given without cache"),
        *(({"cache": "c", "ttl": ttl}, f"ttl is {ttl}: expected seconds above 0") for ttl in TTLS),
    ],
)
def test_what_cannot_be_declared(arguments, problem):
    """The table, what was wrong, and what would work are told at once."""
    given = {"name": "p", "schema": TEXT, "bind": ["sku"], "via": VIA} | arguments
    with pytest.raises((InputError, OptionError), match=problem):
        millrace.lookup(**given)


def test_makers_of_sources_are_loaded_when_used():
    """They are attributes of the package; another name raises what Python raises."""
    assert callable(millrace.http) and callable(millrace.database)
    with pytest.raises(AttributeError, match="htpp"):
        millrace.htpp  # noqa: B018


def test_sources_are_checked_for_a_query():
    """What the source knows to be wrong is told before anything runs."""
    wrong = millrace.lookup("p", "sku string", ["sku"], EVERYTHING)
    with pytest.raises(InputError, match="takes no keys"):
        wrong.check()
