"""The committed table of results: it is of this code, and what documents quote stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.experiments.experiment import DIFFERS, Claim, Experiment
from lab.experiments.registry import EXPERIMENTS
from lab.experiments.runner import Result, run
from lab.experiments.table import encoded, entries, read, rendered, summary
from lab.tests.experiments.frame_cases import experiment, failing
from millrace.errors import InputError

ROOT = Path(__file__).parents[2]
TABLE = read(ROOT / "docs" / "results.json")
QUOTING = ("README.md", "docs/experiments.md")
_QUOTE = re.compile(r"([\d.,]+)(?: to ([\d.,]+))?( %)?<!-- ([a-z0-9-]+)\.(\w+) -->")
"""``0.35 to 0.36<!-- beyond-cascade.asked -->``: the least and the most over seeds, or their like digits."""


def quotes() -> Iterator[tuple[str, str, str, bool, str, str]]:
    for name in QUOTING:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = list(_QUOTE.finditer(text))
        assert len(found) == len(re.findall(r"<!-- [a-z0-9-]+\.\w+ -->", text)), (
            f"{name}: a quote of no number"
        )
        for each in found:
            low, high, percent, id_, figure = each.groups()
            yield name, low, high or low, percent is not None, id_, figure


def rounded(value: float, like: str) -> str:
    """A number with as many digits as another, rounded half up or half down as text is."""
    return f"{value:,.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("each", [each for each in EXPERIMENTS.values() if not each.wall], ids=lambda e: e.id)
def test_the_table_is_of_these_claims(each: Experiment) -> None:
    """Every experiment on the virtual clock is in it, judged by the bounds that the code states today."""
    entry = TABLE[each.id]
    assert entry.parameters.keys() == each.settings().values.keys()
    assert entry.stated == [claim.inequality for claim in each.claims], "state the claim, then run it again"
    for claim, verdicts in zip(each.claims, entry.holds, strict=True):
        values = entry.figures[claim.figure]
        assert len(values) == len(entry.seeds)
        assert [claim.judge({claim.figure: value}).holds for value in values if value is not None] == verdicts


def test_a_run_finds_what_the_table_says() -> None:
    """The virtual clock is the same on every machine: a figure that has moved is a change of the engine."""
    for name in ("stems-fig7", "beyond-correlated"):
        entry, each = TABLE[name], EXPERIMENTS[name]
        outcome = each.run(each.settings(entry.seeds[-1], dict(entry.parameters)))
        assert outcome.figures == pytest.approx(
            {key: values[-1] for key, values in entry.figures.items()}, rel=1e-5
        )


def test_what_is_quoted_stands_in_the_table() -> None:
    """Each number with the digits that it is quoted with."""
    found = list(quotes())
    assert {name for name, *_ in found} == set(QUOTING)
    for name, low, high, percent, id_, figure in found:
        least, most = (value * (100 if percent else 1) for value in TABLE[id_].measured(figure))
        said = f"{name} quotes {low} to {high} for {id_}.{figure}, the table has {least} to {most}"
        assert (rounded(least, low), rounded(most, high)) == (low, high), said


def test_documents_tell_how_many_hold() -> None:
    """The sentence of the table stands in both, and the table for people is that of the other file."""
    for name in QUOTING:
        assert summary(TABLE, EXPERIMENTS) in (ROOT / name).read_text(encoding="utf-8").replace("\n", " ")
    assert rendered(TABLE, EXPERIMENTS) == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def ran(*cases: Experiment, seeds: int = 2) -> list[Result]:
    return list(run([(each, each.settings(seed)) for each in cases for seed in range(seeds)]))


def test_a_table_keeps_what_was_not_run_again(tmp_path: Path) -> None:
    """What is run again is replaced, what is no more is dropped, what failed is not in it."""
    path = tmp_path / "table.json"
    one, two, wall = experiment("tests-a"), experiment("tests-b"), experiment("tests-c", wall=True)
    known = {each.id: each for each in (one, two, wall)}
    path.write_text(encoded(entries(ran(one, two, experiment("tests-old"))), known))
    before = read(path)
    assert list(before) == ["tests-a", "tests-b"]
    assert (before["tests-a"].seeds, before["tests-a"].figures["rise"]) == ([0, 1], [9.5, 9.5])
    assert before["tests-a"].figures["ratio"] == [None, None] and before["tests-a"].verdict is True
    assert entries(ran(experiment("tests-a", measure=failing))) == {}
    claim = Claim(
        "it falls", "noise", high=-9, margin="none", fails="falling", cause="noise", found=(-9, 0.1)
    )
    again = experiment("tests-a", claims=(claim,))
    table = before | entries(ran(again))
    text = rendered(table, {**known, "tests-a": again})
    assert table["tests-b"] == before["tests-b"] and table["tests-a"].holds != before["tests-a"].holds
    assert "Not measured, for real time" in text and "tests-c" in text
    assert "Of 3 experiments, 2 are in the table, 0 of them at a smaller size" in text


def test_verdicts_over_seeds(tmp_path: Path) -> None:
    """One seed that fails is enough; the table says how many do."""
    noise = [each.outcome.figures["noise"] for each in ran(experiment()) if each.outcome]
    middle = sum(noise) / 2
    claim = Claim("it is loud", "noise", low=middle, margin="none", fails="falling")
    for cause, verdict, words in (
        ("", False, "**does not hold** (1 of 2)"),
        ("luck", DIFFERS, "differs: luck (1"),
    ):
        case = experiment(
            claims=(claim if not cause else Claim(**{**vars(claim), "cause": cause, "found": (-9, 9)}),)
        )
        table = entries(ran(case))
        assert table[case.id].verdict == verdict
        assert words in rendered(table, {case.id: case}) and "holds (1 of 2)" in rendered(
            table, {case.id: case}
        )


def test_another_file_is_refused(tmp_path: Path) -> None:
    """Before anything runs."""
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"is no table of results .*: name another file for --table"):
        read(path)
