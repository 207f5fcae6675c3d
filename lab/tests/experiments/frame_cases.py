"""Small experiments that stand for real ones in tests of the frame; other processes find them by name."""

from __future__ import annotations

import math

import numpy as np

from lab.experiments.experiment import Claim, Curve, Experiment, Outcome, Panel, Parameter, Settings
from millrace.errors import ExecutionError

POINTS = Parameter("points", 20, 2, 1000, "points", "on each curve")
SLOPE = Parameter("slope", 0.5, 0.0, 2.0, "", "of the line")


def rising(settings: Settings) -> Outcome:
    """A line and a noisy one: ablated, it falls."""
    x = np.arange(settings["points"])
    slope = -settings["slope"] if settings.ablated else settings["slope"]
    noise = np.random.default_rng(settings.seed).normal(0, 0.1, len(x))
    rise = slope * float(x[-1])
    return Outcome(
        (
            Panel(
                "plain",
                "time (s)",
                "tuples",
                (Curve("line", x, slope * x), Curve("noisy", x, slope * x + noise)),
            ),
            Panel(
                "counted",
                "query",
                "calls",
                (Curve("calls", (0, 1), (3, 4)),),
                kind="bars",
                x_names=("<a>", "b & c"),
            ),
        ),
        {"rise": rise, "noise": float(noise.sum()), "ratio": math.nan},
    )


def failing(settings: Settings) -> Outcome:
    """Fail for a reason that the message explains."""
    raise ExecutionError("the mill has no water")


def stopping(settings: Settings) -> Outcome:
    """Be interrupted."""
    raise KeyboardInterrupt


def experiment(name: str = "tests-rising", **settings: object) -> Experiment:
    """An experiment with something of everything."""
    given = {
        "title": "a line <rises> & rises",
        "source": "Nobody 1999, section 1, figure 1",
        "claim": "A line rises as long as nobody turns it round, which is what mechanisms are for.",
        "claims": (Claim("the line <rises> & more", "rise", low=1, margin="none", fails="falling"),),
        "broken": {"falling": "the line is turned round"},
        "parameters": (POINTS, SLOPE),
        "measure": rising,
        **settings,
    }
    return Experiment(name, **given)
