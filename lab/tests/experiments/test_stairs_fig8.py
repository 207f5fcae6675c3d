"""Figure 8 of the STAIRs paper, with a few dozen of its random set-ups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lab.experiments.stairs import fig8, setups
from lab.experiments.stairs.setups import setup
from millrace.errors import ExecutionError
from millrace.options import Options
from tests.engine.eddy.oracle import Case


@pytest.mark.parametrize("seed", range(3))
def test_set_ups_are_drawn_as_they_say(seed: int) -> None:
    """Shapes, sizes and bounds are the paper's; results are counted right; the same seed draws the same."""
    for number in range(4):
        found = setup(seed, number, 0.01, 100)
        kinds = {f"{kind} of {relations}" for kind, relations in setups.SHAPES}
        assert found.shape in kinds
        streams = found.query.streams
        sizes = {alias: stream.table.num_rows for alias, stream in streams.items()}
        assert set(sizes.values()) <= {round(size / 100) for size in setups.SIZES}
        assert len(found.fans) == len(sizes) - 1
        assert all(0 <= fan <= setups.MOST for fan in found.fans)
        tables = {alias: stream.table.filter(pa.array(stream.passing)) for alias, stream in streams.items()}
        assert Case(found.query.spec, tables).expected() == {(found.query.rows,): 1}
        again = setup(seed, number, 0.01, 100)
        assert (again.plan, again.fans, again.query.rows) == (found.plan, found.fans, found.query.rows)


def test_a_wrong_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every side that is not stopped is checked against the size of the result."""
    monkeypatch.setattr(setups, "_rows", lambda *_: 1_000_003)
    monkeypatch.setattr(setups, "_RESULTS", 10**12)
    with pytest.raises(ExecutionError, match=r"set-up 0: joins found [0-9]+ rows of 1000003"):
        fig8.trial(0, seed=0, scale=0.01, batch=3000, sides=[("joins", None)])


def test_a_side_that_is_far_too_dear_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as the limit; what comes after is compared with the best so far."""
    monkeypatch.setattr(fig8, "MOST", 0.5)
    seconds, _ = fig8.trial(1, seed=0, scale=0.02, batch=3000, sides=[("joins", None), ("static", None)])
    assert seconds[fig8.SHJ] == pytest.approx(0.5 * seconds[fig8.JOINS])


def test_plans_are_all_there_are() -> None:
    """A path of four has five binary trees without cross products; each covers every relation once."""
    from lab.experiments.lab.plans import plans_of
    from millrace.engine.graph import QueryGraph
    from millrace.engine.trees import spanning_tree

    number = next(n for n in range(100) if setup(0, n, 0.01, 100).shape == "path of 4")
    found = setup(0, number, 0.01, 100)
    tree = spanning_tree(QueryGraph.of(found.query.spec), [0] * 4)
    orders = {plan.order for plan in plans_of(tree, found.query.spec.aliases)}
    assert len(orders) == 5
    for order in orders:
        Options(architecture="static", order=order)
        assert sorted(np.ravel(_leaves(order)).tolist()) == ["t0", "t1", "t2", "t3"]


def _leaves(order: object) -> list[object]:
    return [order] if isinstance(order, str) else [leaf for part in order for leaf in _leaves(part)]  # type: ignore[attr-defined]
