"""Migration policies: what each moves, and what that costs over moving nothing or everything at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.migration import MIGRATION_POLICIES, Change, default_migration, policies
from millrace.options import MIGRATIONS, Options
from tests.engine.laws import examples
from tests.engine.migration.simulator import Phase, Simulation, simulate

LAWS = examples(40)
TUPLES = 400_000


def run(name: str, phases: list[Phase], **settings: float) -> Simulation:
    return simulate(phases, MIGRATION_POLICIES[name](Options()), **settings)


def change(tuples: int, *, saving: float = 1e9, arrived: int = 1000, decision: int = 1) -> Change:
    return Change(tuples, float(tuples), saving, arrived, 1e6, decision)


def two_phases(share: float, matches: float) -> list[Phase]:
    first = round(share * TUPLES)
    return [Phase(first, (0.2, matches)), Phase(TUPLES - first, (matches, 0.2))]


def fluctuating(period: int, matches: float) -> list[Phase]:
    return [Phase(period, (matches, 0.2) if turn % 2 else (0.2, matches)) for turn in range(TUPLES // period)]


def random_phases(seed: int) -> list[Phase]:
    """Return changes at random times, of a random strength between a tenth of a match and a hundred."""
    random = np.random.default_rng(seed)
    scale = 10 ** random.uniform(-1, 2)
    lengths = 2000 + random.exponential(30_000, random.integers(2, 25)).astype(int)
    return [Phase(int(length), tuple(random.exponential(scale, 2))) for length in lengths]


def test_every_policy_of_the_options_is_registered() -> None:
    """The names users may write are exactly the policies there are."""
    assert set(MIGRATION_POLICIES) == set(MIGRATIONS)
    assert default_migration() in MIGRATIONS


phases = st.lists(
    st.builds(Phase, st.integers(1, 30_000), st.tuples(st.floats(0, 50), st.floats(0, 50))), max_size=8
)


@pytest.mark.law
@pytest.mark.parametrize("name", MIGRATION_POLICIES)
def test_no_more_is_moved_than_is_misplaced_and_always_the_same(name: str) -> None:
    """Whatever comes, and however wrong the forecast is; two runs are alike."""

    @LAWS
    @given(phases, st.sampled_from([0.0, 0.3, 1.0, 5.0]), st.sampled_from([500, 5000]))
    def law(drawn: list[Phase], foresight: float, batch: int) -> None:
        one, two = (run(name, drawn, foresight=foresight, batch=batch) for _ in range(2))
        assert (one.work, one.moves) == (two.work, two.moves)  # the simulator checks the bounds

    law()


def test_eager_moves_all_and_never_moves_nothing() -> None:
    """The paper's greedy policy, and EddyJoins: neither looks at what it costs."""
    for saving in (-1.0, 0.0, 1e9):
        asked = change(500, saving=saving)
        assert MIGRATION_POLICIES["eager"](Options()).allowance(asked) == 500
        assert MIGRATION_POLICIES["never"](Options()).allowance(asked) == 0


@pytest.mark.parametrize(("share", "matches"), [(0.3, 5.0), (0.55, 5.0), (0.3, 50.0), (0.1, 20.0)])
def test_a_single_right_change_is_followed(share: float, matches: float) -> None:
    """Where one migration is what is needed, the work is nearly that of doing it at once."""
    drawn = two_phases(share, matches)
    assert run("backoff", drawn).work <= 1.05 * run("eager", drawn).work
    assert run("backoff", drawn).work < 0.75 * run("never", drawn).work


@pytest.mark.parametrize("matches", [2.0, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("period", [2000, 4000, 10_000, 20_000, 50_000, 100_000])
def test_fluctuations_do_not_make_it_thrash(matches: float, period: int) -> None:
    """However fast selectivities change hands, it is at most a quarter more work than moving nothing."""
    drawn = fluctuating(period, matches)
    assert run("backoff", drawn).work <= 1.25 * run("never", drawn).work


def test_eager_thrashes() -> None:
    """Otherwise there would be nothing to avoid."""
    drawn = fluctuating(4000, 5.0)
    assert run("eager", drawn).work > 5 * run("never", drawn).work


def test_random_changes_gain_more_than_they_lose() -> None:
    """Over random sequences: less work than moving nothing, almost never a quarter more, eager far above."""
    drawn = [random_phases(seed) for seed in range(150)]
    never = np.array([run("never", each).work for each in drawn])
    ratios = np.array([run("backoff", each).work for each in drawn]) / never
    eager = np.array([run("eager", each).work for each in drawn]) / never
    assert ratios.mean() < 1.0
    assert np.quantile(ratios, 0.97) <= 1.25
    assert ratios.max() <= 1.6
    assert np.quantile(eager, 0.97) > 2.5


@pytest.mark.broken_rule
def test_without_patience_and_horizon_it_would_thrash(monkeypatch: pytest.MonkeyPatch) -> None:
    """To weigh alone, as if every change were for ever, is not enough."""
    monkeypatch.setattr(policies, "_MOST", policies._LEAST)
    monkeypatch.setattr(policies, "max", lambda *_: 1e18, raising=False)
    drawn = fluctuating(4000, 50.0)
    assert run("backoff", drawn).work > 1.25 * run("never", drawn).work


@pytest.mark.parametrize("foresight", [0.0, 1.0])
def test_a_large_late_change_is_not_followed(foresight: float) -> None:
    """Nothing comes after it that would pay for the migration; eager does it all the same."""
    drawn = two_phases(0.97, 5.0)
    assert run("backoff", drawn, foresight=foresight).moves == []
    assert sum(moved for _, moved in run("eager", drawn).moves) > 0.4 * TUPLES


def test_patience_grows_with_migrations_and_returns_when_it_is_calm() -> None:
    """A saving that was enough once is not enough soon after, and is again after a calm time."""
    policy = MIGRATION_POLICIES["backoff"](Options())

    def follows(arrived: int, decision: int) -> bool:
        remaining = 1.0  # all the saving lies within the horizon
        return policy.allowance(Change(100, 100.0, 200.0, arrived, remaining, decision)) > 0

    assert follows(1000, 1)
    assert follows(1100, 1)  # what is left of the same decision only has to pay for itself
    assert not follows(1200, 2)
    assert not follows(1999, 3)
    assert follows(2000, 4)
