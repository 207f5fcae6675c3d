"""Every figure once at its smallest size, whole and broken; and what judges, draws, lists and keeps them."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys

import pytest

from lab.figures import figures, find, results
from lab.figures.draw import overlaps, picture, save, unusual
from lab.figures.figure import Curve, Figure, Outcome, Panel, Parameter, claims_of
from lab.figures.run import Result, Task, measure
from millrace.errors import OptionError

pytestmark = pytest.mark.nightly

ALL = figures()
FIGURE = "eddies-fig10"


def made(**more):
    """A figure of something that is not run."""
    claims = claims_of("1 ≤ rise | it rises | steeply | falling")
    broken = {"falling": "the line is turned round"}
    parameters = (Parameter("points", 20, 2, 1000, "points", "on the line"),)
    parts = {"claims": claims, "broken": broken, "parameters": parameters, **more}
    return Figure("made", "A line", "Nobody 1999, figure 1", "It rises.", lambda _: None, **parts)


def result(value=2.0, seed=0, error="", **more):
    """A run of a small figure whose claims' numbers are all this one."""
    task = Task(FIGURE, seed, {}, **more)
    panel = Panel.bars("Time", "time (s)", {"a plan with a long name": 3.0, "an eddy": 1.0})
    numbers = {claim.figure: value for claim in task.figure.claims}
    return Result(task, task.settings().values, None if error else Outcome([panel], numbers), 1.0, error)


def lab(*arguments, expected):
    """Run the command, which ends with the code expected; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", "figures", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("each", ALL.values(), ids=ALL)
def test_a_figure_holds_and_its_first_broken_engine_does_not(each):
    """A claim about the missing mechanism holds with it and fails without; no labels overlap."""
    runs = [measure(Task(each.id, 0, {}, ablated, small=True)) for ablated in ("", next(iter(each.broken)))]
    assert not any(run.error for run in runs), [run.error for run in runs]
    whole, broken = ([verdict for *_, verdict in run.judge_claims()] for run in runs)
    # Small runs of the clock say little but how far apart the engines are.
    assert each.wall or "does not hold" not in whole
    about = [claim.fails == next(iter(each.broken)) for claim in each.claims]
    failed = [b == "does not hold" and (each.wall or w != b) for w, b in zip(whole, broken, strict=True)]
    assert any(f and a for f, a in zip(failed, about, strict=True)), broken
    assert [overlaps(picture(run)) for run in runs] == [[], []]


@pytest.mark.parametrize("each", ALL.values(), ids=ALL)
def test_a_figure_can_be_read_and_sent(each):
    """Its words are there, its id begins with its paper, and other processes find it."""
    assert re.fullmatch(r"(eddies|overheads|stems|stairs|beyond|peers)(-[a-z0-9-]+)?", each.id)
    assert all((each.title, each.source, each.says, each.broken, each.claims))
    assert all(parameter.meaning for parameter in each.parameters)
    assert pickle.loads(pickle.dumps(each)) == each
    assert find([each.id, each.id]) == [each]


def test_a_claim_is_judged_by_its_bounds():
    """Within them it holds; beyond, it differs where its cause says it would be; a NaN never holds."""
    table = """
    # Nobody knows.
    1 ≤ x ≤ 2 | a claim | steep |
        slow
        but 2 to 3: why
        not
    y = 0 | another
    """
    one, other = claims_of(table)
    verdicts = [one.judge({"x": x}) for x in (0.9, 1, 2, 2.5, 3.1, math.nan)]
    no, yes, differs = "does not hold", "holds", "differs"
    assert verdicts == [no, yes, yes, differs, no, no]
    assert (one.bounds, one.says, one.paper, one.fails) == ("1 ≤ x ≤ 2", "a claim", "steep", "slow")
    assert (one.cause, other.figure, other.paper, other.cause) == ("why not", "y", "", "")
    assert [other.judge({"y": y}) for y in (0, 1)] == [yes, no]
    with pytest.raises(ValueError, match="this is no claim: x is small"):
        claims_of("x is small")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"overrides": {"point": 3}}, "made has no parameter 'point': did you mean 'points'?"),
        ({"overrides": {"points": 1}}, "points is 1: expected a whole number from 2 to 1,000 points"),
        ({"overrides": {"points": 2.5}}, "points is 2.5: expected a whole number"),
        ({"overrides": {"points": math.inf}}, "points is inf"),
        ({"ablated": "fallin"}, "made has no broken engine 'fallin': did you mean 'falling'?"),
        ({"seed": -1}, "seed is -1"),
        ({"policy": object}, "made compares no policies"),
    ],
)
def test_wrong_settings_are_refused(wrong, expected):
    """The message says what was given and what may be."""
    with pytest.raises(OptionError, match=re.escape(expected)):
        made().settings(**wrong)


def test_a_figure_states_something_that_can_fail():
    """Without claims it is none, and each broken engine that a claim names is there."""
    with pytest.raises(ValueError, match="claims nothing"):
        made(claims=())
    with pytest.raises(ValueError, match="made: it rises"):
        made(broken={})
    with pytest.raises(ValueError, match="'two'"):
        Curve("two", (1, 2), (1,))


def test_what_is_unusual_stands_in_the_picture(tmp_path):
    """A broken engine, small sizes and changed parameters; four files are written."""
    ran = result(ablated="no-queues", small=True)
    found = unusual(ran)
    assert found[0].startswith("ABLATED: queues never fill") and found[1] == "small"
    assert "tuples = 600" in found[2]
    assert all(path.stat().st_size > 1000 for path in save(ran, tmp_path))
    assert len(list(tmp_path.iterdir())) == 4
    assert "ABLATED" in (tmp_path / f"{FIGURE}-slide.svg").read_text(encoding="utf-8")


def test_labels_that_lie_on_each_other_are_found():
    """Marks stand on two lines, so that of three at one place two do; far apart none do."""
    for places, number in (((0.5, 0.5, 0.5), 1), ((0.1, 0.5, 0.9), 0)):
        marks = [(place, "toggles") for place in places]
        panel = Panel.over("p", "x", "y", (0, 1), {"one": (0, 1)}, marks=marks)
        outcome = Outcome([panel], result().outcome.figures)
        drawn = picture(Result(Task(FIGURE, 0, {}), result().values, outcome, 1.0))
        assert len(overlaps(drawn)) == number


def test_the_table_is_made_of_all_runs_that_were_kept(tmp_path):
    """Its figures come from files beside it; a figure of which a run failed keeps what it had."""
    table = tmp_path / "RESULTS.md"
    results.keep([result(4.0), result(0.2, seed=1)], table)
    before = table.read_text(encoding="utf-8")
    assert "1 are measured" in before and "0.2 to 4" in before and "Seeds 0, 1" in before
    assert "does not hold (1 of 2)" in before and "Not measured: " in before
    results.keep([result(error="no water")], table)
    assert table.read_text(encoding="utf-8") == before
    (tmp_path / "results" / f"{FIGURE}.json").write_text("[]", encoding="utf-8")
    assert f"{FIGURE} (its file is not of these claims)" in results.rendered(tmp_path / "results")


def test_the_page_names_what_did_not_finish():
    """A run that failed, with its reason, and one that never ended."""
    runs = [result(), result(seed=1, error="no <water>")]
    page = results.page([*(run.task for run in runs), Task(FIGURE, 2, {})], runs)
    assert f"{FIGURE}, seed 1: no &lt;water&gt;" in page and f"{FIGURE}, seed 2: did not finish" in page
    assert "2 of 3 runs finished" in page and f'src="{FIGURE}.svg"' in page


@pytest.mark.slow
def test_the_command_draws_judges_and_says_so_by_its_code(tmp_path):
    """0 if all claims hold, 1 if one does not or a figure fails, which the page names."""
    lab(FIGURE, "--small", "--out", f"{tmp_path}", "--json", f"{tmp_path / 'all.json'}", expected=0)
    (row,) = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert row["verdict"] == "holds" and (tmp_path / f"{FIGURE}.svg").exists()
    lab(FIGURE, "--small", "--ablate", "first", "--out", f"{tmp_path}", expected=1)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from millrace.engine.policies import Naive\nfrom millrace.errors import ExecutionError\n"
        "class Dry(Naive):\n    def choose(self, *_):\n        raise ExecutionError('no water')\n"
    )
    lab("beyond-policies", "--small", "--policy", f"{mine}:Dry", "--out", f"{tmp_path}", expected=1)
    assert "beyond-policies, seed 0: no water" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        ["eddies-fig99"],
        [FIGURE, "--set", "tuples=many"],
        [FIGURE, "--ablate", "nothing"],
        [FIGURE, "--policy", "nothing.py:Policy"],
        [FIGURE, "--seeds", "0"],
        [FIGURE, "--ablate", "first", "--results", "RESULTS.md"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(wrong):
    """Before anything runs."""
    lab(*wrong, expected=2)
