"""Content-sensitive routing: tuples take routes by the value of an attribute; results stay what they are."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.operators import informative
from millrace.engine.operators.informative import division
from millrace.engine.runs.eddy_run import EddyRun
from millrace.options import Options
from tests.engine.eddy.blocks import block, run
from tests.engine.eddy.oracle import Case

ROWS = 4000
KEYS = 500


def parts(values: list[Any], rows: int = ROWS, seed: int = 0) -> Case:
    """Return a block whose streamed relation has two parts, told apart by which half of the values it has."""
    random = np.random.default_rng(seed)
    part = random.integers(0, 2, rows)
    half = len(values) // 2
    shown = part * half + random.integers(0, half, rows)
    keys = random.integers(0, KEYS, rows)
    names = random.permutation(2 * KEYS)
    few, many = names[:KEYS], names[KEYS:]
    a, b = (np.where(part == side, many[keys], few[keys]) for side in (0, 1))
    met = pa.table({"k": np.concatenate([few[: KEYS // 10], np.repeat(many, 4)])})
    stream = pa.table({"value": pa.array([values[i] for i in shown]), "a": a, "b": b})
    return block({"r": stream, "s": met, "t": met}, ["r.a = s.k", "r.b = t.k"], count_only=True)


def divided(eddy: EddyRun) -> dict[str, int]:
    return {m.name: m.tuples_in for m in eddy.figures().modules if m.action == "divide"}


OPTIONS = Options(transfer=False, batch_size=500, reoptimize_every=1000)

VALUES: dict[str, list[Any]] = {
    "text": ["a", "b", "c", "d"],
    "boolean": [False, True],
    "integer": list(range(1000)),
    "float": [i / 7 - 50 for i in range(1000)],
    "infinite": [-np.inf, *range(998), np.inf],
    "date": [dt.date(2020, 1, 1) + dt.timedelta(i) for i in range(1000)],
    "timestamp": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i) for i in range(1000)],
}


@pytest.mark.parametrize("kind", VALUES)
def test_an_attribute_is_found_and_saves_work(kind: str) -> None:
    """Few values are told apart each by itself, many in ranges."""
    case = parts(VALUES[kind])
    rows, eddy = run(case, OPTIONS, chunk=500)
    same, without = run(case, Options(**{**vars(OPTIONS), "by_content": False}), chunk=500)
    assert rows == same == case.expected()
    (found,) = divided(eddy)
    assert found == "Divide(r.value)" and not divided(without)
    assert eddy.figures().intermediate_tuples < 0.6 * without.figures().intermediate_tuples


def test_nulls_and_unknown_values_take_the_order_that_is_best_of_all() -> None:
    """And no row of them is lost."""
    case = parts([None, "a", "b", "c"])
    table = case.tables["r"]
    late = pa.table({"value": ["new"] * 600, "a": table["a"][:600], "b": table["b"][:600]})
    case = block(
        {**case.tables, "r": pa.concat_tables([table, late])}, ["r.a = s.k", "r.b = t.k"], count_only=True
    )
    rows, eddy = run(case, OPTIONS, chunk=500)
    assert rows == case.expected() and divided(eddy)


@pytest.mark.parametrize("values", [["same", "same"], [1.0, 1.0]])
def test_where_nothing_tells_tuples_apart_none_are_divided(values: list[Any]) -> None:
    """Keys and values say nothing, so a sample is all that it costs."""
    case = parts(values)
    rows, eddy = run(case, OPTIONS, chunk=500)
    assert rows == case.expected() and not divided(eddy) and 0 < eddy.sampled <= ROWS


@pytest.mark.parametrize(
    "changes", [{"policy": "fixed", "order": ("r", "s", "t")}, {"architecture": "stairs"}]
)
def test_what_has_a_route_of_its_own_is_not_divided(changes: dict[str, Any]) -> None:
    """An order that was asked for is kept; state of STAIRs follows signatures."""
    case = parts(VALUES["text"])
    rows, eddy = run(case, Options(**{**vars(OPTIONS), **changes}), chunk=500)
    assert rows == case.expected() and not divided(eddy) and not eddy.sampled


@pytest.mark.broken_rule
def test_that_orders_are_proved_on_other_tuples_is_what_keeps_noise_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With as many buckets as tuples some order fits each of them by chance, and none fits the next ones."""
    random = np.random.default_rng(5)
    counts = random.integers(0, 3, (2000, 2))
    monkeypatch.setattr(informative, "_LEAST", 1)
    monkeypatch.setattr(informative, "BUCKETS", 500)
    noise = {"noise": pa.array(random.integers(0, 500, 2000))}
    assert division(noise, counts) is None
    told = {"told": pa.array(np.sign(counts[:, 0] - counts[:, 1]))}
    found = division({**noise, **told}, counts)
    assert found is not None and found.column == "told"
    doubled = {name: values.take(np.repeat(np.arange(1000), 2)) for name, values in noise.items()}
    assert division(doubled, np.repeat(counts[:1000], 2, axis=0)) is not None  # the same tuples prove nothing
