"""What every experiment is made of: settings that are checked, outcomes, and the registry."""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pytest

from lab.experiments import registry
from lab.experiments.experiment import DIFFERS, Check, Claim, Curve, Outcome, Parameter
from lab.tests.experiments.frame_cases import experiment, rising
from millrace.errors import InputError, OptionError


def test_settings_are_the_defaults_but_for_what_is_changed():
    """Whole numbers stay whole, others become floats."""
    settings = experiment().settings(3, {"slope": 1})
    assert settings.seed == 3
    assert settings.values == {"points": 20, "slope": 1.0}
    assert type(settings["points"]) is int and type(settings["slope"]) is float


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"point": 3}, "tests-rising has no parameter 'point': did you mean 'points'?"),
        ({"points": 1}, "points is 1: expected a whole number from 2 to 1,000 points"),
        ({"points": 1e9}, "points is 1e+09: expected a whole number from 2 to 1,000 points"),
        ({"points": 2.5}, "points is 2.5: expected a whole number"),
        ({"slope": 2.01}, "slope is 2.01: expected a number from 0 to 2"),
        ({"slope": float("inf")}, "slope is inf: expected a number from 0 to 2"),
        ({"slope": True}, "slope is True: expected a number from 0 to 2"),
    ],
)
def test_a_value_that_cannot_be_is_refused(overrides, expected):
    """The message says what was given and what may be."""
    with pytest.raises(OptionError, match=re.escape(expected)):
        experiment().settings(0, overrides)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True, "7"])
def test_a_seed_is_a_whole_number(seed):
    """From 0 on, within what random generators take."""
    with pytest.raises(OptionError, match="seed"):
        experiment().settings(seed)


def test_a_default_lies_in_its_own_range():
    """A parameter that refuses its default is a mistake of who wrote it."""
    with pytest.raises(OptionError, match="rows"):
        Parameter("rows", 5, 10, 20, "tuples", "in the table")


def test_curves_hold_plain_numbers_of_equal_length():
    """Outcomes become JSON and cross processes, whatever they were computed with."""
    curve = Curve("one", np.arange(3), np.array([1, 2, 3], np.int8))
    assert curve.x == (0.0, 1.0, 2.0) and all(type(y) is float for y in curve.y)
    with pytest.raises(ValueError, match="'two'"):
        Curve("two", (1, 2), (1,))


def test_an_outcome_holds_if_all_its_checks_do():
    """One that fails is enough; one that differs for a known cause makes the whole differ."""
    good, bad, other = Check("a", True, "1"), Check("b", False, "2"), Check("c", DIFFERS, "3")
    assert Outcome((), {}, (good,)).holds is True
    assert Outcome((), {}, (good, other)).holds == DIFFERS
    assert not Outcome((), {}, (good, other, bad)).holds


def test_a_claim_is_judged_by_its_bounds():
    """Within them it holds; outside it differs where its cause says it would be, and "
    "else it does not hold.
    """
    claim = Claim("c", "x", 1, 2, fails="falling", cause="why", found=(2, 3))
    verdicts = [claim.judge({"x": x}).holds for x in (0.9, 1, 2, 2.5, 3.1, float("nan"))]
    assert verdicts == [False, True, True, DIFFERS, False, False]
    assert claim.inequality == "1 ≤ x ≤ 2"


def test_an_experiment_without_claims_or_with_unknown_engines_is_refused():
    """Each claim names a broken engine that the experiment has."""
    with pytest.raises(ValueError, match="claims nothing shows nothing"):
        experiment(claims=())
    with pytest.raises(ValueError, match="'falling'"):
        experiment(claims=(Claim("c", "x", fails="raising"),))
    with pytest.raises(OptionError, match=r"'fallin'.*'falling'"):
        experiment().settings(0, ablated="fallin")


def test_experiments_and_outcomes_cross_processes():
    """Both are pickled and come back the same."""
    case = experiment()
    settings = case.settings(1)
    assert pickle.loads(pickle.dumps(case)) == case
    outcome = rising(settings)
    assert pickle.loads(pickle.dumps(outcome)).panels == outcome.panels


@pytest.mark.parametrize("each", registry.EXPERIMENTS.values(), ids=lambda each: each.id)
def test_every_experiment_can_be_read_and_sent(each):
    """Its words are there, its id tells the paper, its defaults are in range, and other processes find it."""
    assert re.fullmatch(r"(eddies|overheads|stems|stairs|beyond)-[a-z0-9-]+", each.id)
    assert all((each.title, each.source, each.claim, each.mechanism))
    assert all(claim.says and claim.margin for claim in each.claims)
    assert each.settings().values.keys() == {parameter.name for parameter in each.parameters}
    assert all(parameter.meaning for parameter in each.parameters)
    assert pickle.loads(pickle.dumps(each)) == each


def test_bounds_are_read_as_they_are_written():
    """What is no inequality is a mistake of who wrote it."""
    assert registry.bounds("-0.5 ≤ x ≤ 2") == ("x", -0.5, 2.0)
    assert registry.bounds("rise ≤ 1") == ("rise", -math.inf, 1.0)
    assert registry.bounds("1 ≤ rise") == ("rise", 1.0, math.inf)
    assert registry.bounds("x = 0") == ("x", 0.0, 0.0)
    with pytest.raises(ValueError, match="'x < 1'"):
        registry.bounds("x < 1")


def test_experiments_are_found_by_id(monkeypatch):
    """Each once, in the order asked for; of an unknown one the near ones are named."""
    one, two = experiment("eddies-fig4"), experiment("eddies-fig5")
    monkeypatch.setattr(registry, "EXPERIMENTS", {each.id: each for each in (one, two)})
    assert registry.find(["eddies-fig5", "eddies-fig4", "eddies-fig5"]) == (two, one)
    with pytest.raises(InputError, match="'eddies-fig'"):
        registry.find(["eddies-fig"])


def test_wall_clock_experiments_run_when_asked_for(monkeypatch):
    """With --all they are left out without --wall; by name that is an error."""
    one, two = experiment("eddies-fig4"), experiment("overheads-fig5", wall=True)
    monkeypatch.setattr(registry, "EXPERIMENTS", {each.id: each for each in (one, two)})
    assert registry.choose((), every=True, wall=False) == (one,)
    assert registry.choose((), every=True, wall=True) == (one, two)
    assert registry.choose(["overheads-fig5"], every=False, wall=True) == (two,)
    with pytest.raises(InputError, match=r"overheads-fig5.*--wall"):
        registry.choose(["eddies-fig4", "overheads-fig5"], every=False, wall=False)
    with pytest.raises(InputError, match="no experiment id: name some"):
        registry.choose((), every=False, wall=False)
    with pytest.raises(InputError, match="--all"):
        registry.choose(["eddies-fig4"], every=True, wall=False)
