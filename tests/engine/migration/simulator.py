"""A model of one relation's state beside two joins, in plain arithmetic.

A tuple of the middle relation of ``R ⋈ S ⋈ T`` is stored with one of its two joins. Of what arrives, some are
such tuples, which routing stores at the side that is better now; all others meet what is stored, at each side
with as many matches as the phase says. Nothing is random and nothing reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.engine.migration import Change, MigrationPolicy


@dataclass(frozen=True)
class Phase:
    """For so many source tuples: matches per arriving tuple if all the state were at side 0, or at side 1."""

    tuples: int
    matches: tuple[float, float]


@dataclass
class Simulation:
    """Runs phases under a policy.

    Args:
        phases: One after the other.
        policy: Decides what to move.
        batch: Source tuples between two points of stasis.
        stored: Share of the source tuples that become state.
        foresight: The policy is told this many times the tuples that are really to come.
    """

    phases: list[Phase]
    policy: MigrationPolicy
    batch: int = 2000
    stored: float = 0.5
    foresight: float = 1.0
    work: float = 0.0
    spent: float = 0.0
    moves: list[tuple[int, int]] = field(default_factory=list)
    """Source tuples arrived, and tuples moved."""

    def __post_init__(self) -> None:
        whole = sum(phase.tuples for phase in self.phases)
        sides = [0.0, 0.0]
        arrived, decision, good = 0, 0, None
        for phase in self.phases:
            better = int(phase.matches[1] < phase.matches[0])
            for first in range(0, phase.tuples, self.batch):
                n = min(self.batch, phase.tuples - first)
                arrived += n
                held = whole * self.stored
                self.work += n + n * sum(m * s / held for m, s in zip(phase.matches, sides, strict=True))
                good = better if good is None else good
                sides[good] += n * self.stored
                if good != better:  # noticed after a batch
                    good, decision = better, decision + 1
                self._stasis(phase, sides, good, arrived, whole, decision)

    def _stasis(
        self, phase: Phase, sides: list[float], good: int, arrived: int, whole: int, decision: int
    ) -> None:
        """Ask the policy while something is misplaced, and do as it says."""
        misplaced = int(sides[1 - good])
        if not misplaced:
            return
        held = whole * self.stored
        each = (phase.matches[1 - good] - phase.matches[good]) / held
        remaining = self.foresight * (whole - arrived)
        cost = 1 + min(phase.matches) * arrived / whole
        change = Change(
            misplaced,
            misplaced * cost,
            misplaced * each * remaining,
            arrived,
            remaining,
            decision,
            worked=self.work - self.spent,
            spent=self.spent,
        )
        moved = self.policy.allowance(change)
        assert 0 <= moved <= misplaced
        if moved:
            self.moves.append((arrived, moved))
            self.work += moved * cost
            self.spent += moved * cost
            sides[good] += moved
            sides[1 - good] -= moved


def simulate(phases: list[Phase], policy: MigrationPolicy, **settings: float) -> Simulation:
    """Return a finished simulation."""
    return Simulation(phases, policy, **settings)  # type: ignore[arg-type]
