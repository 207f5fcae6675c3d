"""Lookups by intervals: rows are DuckDB's, sources get both ends, and a row comes once for each interval."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings, strategies as st

import millrace
from millrace.lookups import index as index_module
from millrace.lookups.bindings import in_intervals
from millrace.lookups.database import database
from millrace.lookups.http import http
from millrace.lookups.terms import Terms
from millrace.sql.blocks import access
from tests.engine.eddy.access_cases import any_options
from tests.engine.eddy.oracle import _column, block, compare, having, key_values, multiset
from tests.lookups.kinds import fetched
from tests.lookups.test_database import DIALECTS, sqlite
from tests.lookups.test_index import Lookups, TableSource, run
from tests.lookups.web import Web, answering

KINDS = [pa.int8(), pa.int64(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
SEEN = pa.schema([("host", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64())])
KEY = ("host", "at.low", "at.high")


class Ranges(TableSource):
    """Answers from a table with the rows in any of the intervals of ``t``, each once."""

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        wanted = keys.to_pylist()
        self.asked.update(tuple(key.values()) for key in wanted)
        mine = [self.generous or lies(row, wanted, "t") for row in self._rows.to_pylist()]
        return self._rows.filter(pa.array(mine, pa.bool_()))


def lies(row: dict, keys: list[dict], column: str) -> bool:
    """Whether a row agrees with a key, and lies in its interval of a column."""
    return row[column] is not None and any(
        key[f"{column}.low"] <= row[column] <= key[f"{column}.high"]
        and all(row[name] == value for name, value in key.items() if "." not in name)
        for key in keys
    )


LAW = settings(max_examples=40, deadline=None, derandomize=True)


@LAW
@given(st.data())
def test_intervals_have_the_oracles_rows(data: st.DataObject) -> None:
    """Open or closed, some that overlap, have no row or end before they begin; one or several a request."""
    draw, kind = data.draw, data.draw(st.sampled_from(KINDS))
    tables = {}
    for alias, number, *names in (("e", "id", "a", "b"), ("m", "v", "t")):
        size = draw(st.integers(0, 8))
        columns = {name: _column(draw, kind, key_values(kind), size) for name in names}
        keys = _column(draw, pa.string(), ["a", "b"], size)
        tables[alias] = pa.table({number: pa.array(range(size), pa.int64()), "k": keys, **columns})
    tables["m"] = pa.concat_tables([tables["m"], tables["m"].slice(0, 2)])  # equal rows are several
    low, high = draw(st.sampled_from([">", ">="])), draw(st.sampled_from([">", ">="]))
    bounds = [compare(low, "m.t", "e.a", kind), compare(high, "e.b", "m.t", kind)]
    bind = draw(st.sampled_from([[], ["k"]]))
    case = having(block(tables, [f"e.{c} = m.{c}" for c in bind]), *draw(st.permutations(bounds)))
    terms = Terms(max_in_flight=2, batch=draw(st.sampled_from([1, 5])))
    source = Ranges(tables["m"], terms, generous=draw(st.booleans()))
    table = millrace.lookup("m", tables["m"].schema, bind, millrace.function(print), between=["t"])
    index = replace(table.indexes[0], source=source)
    e, m = case.spec.relations
    ties = access.interval_ties("m", index, case.spec.residuals)
    spec = replace(
        case.spec, relations=(e, replace(m, schema=index.schema)), equalities=(*case.spec.equalities, *ties)
    )
    with Lookups() as maker:
        found = run(replace(case, spec=spec), {"m": [maker.of(index)]}, draw(any_options()))
    assert multiset(found) == case.expected(), case.sql()
    assert set(source.asked.values()) <= {1}, "an interval was asked for twice"


def half_open(rows: pa.RecordBatch, keys: pa.RecordBatch, between: str) -> tuple[pa.RecordBatch, list[int]]:
    inside = pc.invert(pc.is_in(rows[between], keys[f"{between}.high"]))
    return in_intervals(rows.filter(inside), keys, between)


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param((index_module, "in_intervals", half_open), id="the upper end is open"),
        pytest.param((access, "_END", {op: 1 - e for op, e in access._END.items()}), id="ends change sides"),
    ],
)
def test_a_broken_rule_of_intervals_is_noticed(monkeypatch, broken) -> None:
    monkeypatch.setattr(*broken)
    law = test_intervals_have_the_oracles_rows.hypothesis.inner_test
    with pytest.raises(AssertionError):
        settings(LAW, phases=[Phase.generate], report_multiple_bugs=False)(given(st.data())(law))()


def minute(number: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1, 10, number)  # noqa: DTZ001  # of no time zone, as the column is


def interval(host: str, low: int, high: int) -> dict:
    return dict(zip(KEY, (host, minute(low), minute(high)), strict=True))


@DIALECTS
async def test_a_database_is_asked_for_several_intervals_at_once(kind) -> None:
    """A row in two of them comes once, equal rows as often as there are; also from a whole batch of keys."""
    rows = [{"host": "ab"[n % 2], "at": minute(n // 4), "v": n // 2 % 2} for n in range(80)]
    rows += rows[:8]
    keys = [interval("a", 1, 3), interval("a", 2, 5), interval("b", 0, 0), interval("b", 7, 6)]
    for asked in (keys[:1], keys, [*keys, *(interval(f"c{n}", n % 9, 9) for n in range(496))]):
        found = await fetched(database(*kind.table(rows)), SEEN, KEY, asked, kind.secrets)
        found = [
            row for row in found.to_pylist() if lies(row, asked, "at")
        ]  # SQLite returns more of the last day
        assert sorted(map(repr, found)) == sorted(repr(row) for row in rows if lies(row, asked, "at"))


async def test_sqlite_finds_times_however_they_are_spelled(tmp_path) -> None:
    """It compares texts, and a driver writes fractions that are zero, or not, behind a space or a T."""
    inside = [" 10:01:00", "T10:01:00.000", " 10:01:00.000001", "T10:01:59.999", "T10:02:00.000000"]
    outside = [" 10:00:59.999999", "T10:00:59", "T10:02:00.001", " 10:02:01"]
    values = ", ".join(f"('a', '2024-01-01{at}', {n})" for n, at in enumerate(inside + outside))
    made = sqlite(tmp_path, "CREATE TABLE m (host text, at text, v int)", f"INSERT INTO m VALUES {values}")
    key = interval("a", 1, 2)
    found = await fetched(database(made, "m"), SEEN, KEY, [key])
    assert sorted(row["v"] for row in found.to_pylist() if lies(row, [key], "at")) == [*range(len(inside))]


async def test_a_service_gets_both_ends() -> None:
    with Web(answering([{"v": 1, "at": "2024-01-01T10:02:00"}])) as seen:
        source = http(f"{seen.url}/{{host}}?from={{at.low}}&to={{at.high}}")
        found = await fetched(source, SEEN, KEY, [interval("a b", 1, 3)])
    assert seen.asked == ["/a%20b?from=2024-01-01T10%3A01%3A00&to=2024-01-01T10%3A03%3A00"]
    assert found.to_pylist() == [{"host": "a b", "at": minute(2), "v": 1}]
