"""How many examples a law draws: so many in the gate, and in proportion to the profile otherwise."""

from __future__ import annotations

import os

from hypothesis import settings

SEED = "0" if settings.default.derandomize else os.environ.get("MILLRACE_SEED", "0")
"""Of what is chosen at random without Hypothesis: always the same in the gate, drawn anew each night."""

GATE = 100
"""What the profile of the gate calls its number of examples; see ``tests/conftest.py``."""


def examples(count: int) -> settings:
    """Return the settings of a law that draws so many examples in the gate."""
    return settings(max_examples=max(1, count * settings.default.max_examples // GATE))


def same_examples(count: int) -> settings:
    """Return the settings of a law about estimates, whose bounds hold for most examples, not for all.

    It draws the same ones in every profile.
    """
    return settings(max_examples=count, derandomize=True, database=None)
