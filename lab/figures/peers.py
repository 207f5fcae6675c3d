"""Head to head with the neighbours of eddies, on one engine and the same data: whole join orders as arms.

POLAR (Justen et al., VLDB 2024, section 4) routes chunks of a streamed table over a few join orders and
measures the *resistance* of each, the intermediate tuples that a tuple of the chunk makes. SkinnerDB (Trummer
et al., SIGMOD 2019, section 4) picks a join order for each slice of time by upper confidence bounds (UCT).
Both keep to one order for a whole chunk, where an eddy decides anew for each signature.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from statistics import geometric_mean

from lab.bench.robust import CASES, Case, cases
from lab.figures.engine import all_batches, key
from lab.figures.figure import Outcome, Panel, Parameter, Settings, figure
from lab.queues import Backpressure
from millrace.engine.eddy.operator import Kind
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.statistics import Account
from millrace.engine.policies import POLICIES, Candidate, Decision, Policy
from millrace.engine.tuples.batch import Signature
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

BLIND = "random"
ORDERS = 24
"""The most orders that a peer knows, drawn from those without cross products."""

Order = tuple[int, ...]


class ByOrders(Policy):
    """Sends each chunk of the streamed relation along one join order, and learns what it cost.

    Orders are numbers of relations, the streamed one first; ``made`` returns the intermediate tuples so far.
    Each chunk has to be through before a decision is made for the next one.
    """

    def __init__(self, orders: Sequence[Order], made: Callable[[], int]) -> None:
        self.orders = orders
        self.chunks = [0] * len(orders)
        self._order = 0
        self._accounts: dict[int, Account] = {}
        self._made = made
        self._before = (0, 0)

    @abstractmethod
    def pick(self) -> int:
        """Return the order of the next chunk."""

    @abstractmethod
    def learn(self, order: int, resistance: float) -> None:
        """Take note of the tuples that a chunk made, for each tuple of it."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the present order's next join; each batch of the streamed relation is a chunk."""
        probes = {c.operator.target: c for c in candidates if c.operator.kind is Kind.PROBE}
        if signature.span == 1 << self.orders[0][0] and probes:
            self._accounts.update((target, each.account) for target, each in probes.items())
            begun, made = sum(account.tuples_in for account in self._accounts.values()), self._made()
            new, cost = begun - self._before[0], made - self._before[1]
            if new > 0:
                self.chunks[self._order] += 1
                self.learn(self._order, cost / new)
            self._before, self._order = (begun, made), self.pick()
        ordered = [probes[target] for target in self.orders[self._order] if target in probes]
        return Decision.of((ordered or candidates)[0])


class InitOnce(ByOrders):
    """POLAR: tries each order with one chunk, and keeps to the one that was best then."""

    measures_again = False

    def __init__(self, orders: Sequence[Order], made: Callable[[], int]) -> None:
        super().__init__(orders, made)
        self.resistance = [math.inf] * len(orders)

    def learn(self, order: int, resistance: float) -> None:
        """Keep what was measured first, or last."""
        if self.measures_again or self.resistance[order] == math.inf:
            self.resistance[order] = resistance

    def pick(self) -> int:
        """Return an order that has not been tried, or else what follows."""
        if math.inf in self.resistance:
            return self.resistance.index(math.inf)
        return self.again(min(range(len(self.orders)), key=self.resistance.__getitem__))

    def again(self, best: int) -> int:
        """Return the next order; ``best`` is the one of least resistance."""
        return best


class Backoff(InitOnce):
    """Tries all orders again and again, after twice as many chunks if the best one has stayed the best."""

    measures_again = True

    def __init__(self, orders: Sequence[Order], made: Callable[[], int]) -> None:
        super().__init__(orders, made)
        self._trying: list[int] = []
        self._left = self._wait = len(orders)
        self._last = -1

    def again(self, best: int) -> int:
        if self._trying:
            return self._trying.pop(0)
        if self._left == self._wait:  # all have just been tried
            self._wait = 2 * self._wait if best == self._last else len(self.orders)
            self._left, self._last = self._wait, best
        self._left -= 1
        if self._left <= 0:
            self._left = self._wait
            self._trying = [i for i in range(len(self.orders)) if i != best]
        return best


class Dynamic(InitOnce):
    """Goes on trying all orders, as often as keeps what that costs within a share of the best one's work."""

    measures_again = True
    REGRET = 0.01
    budget = 0.0

    def again(self, best: int) -> int:
        """Return the order tried least if the budget allows for it, or else the best."""
        self.budget += self.REGRET * (1 + self.resistance[best])
        others = [i for i in range(len(self.orders)) if i != best]
        tried = min(others, key=self.chunks.__getitem__, default=best)
        price = self.resistance[tried] - self.resistance[best]
        if price > self.budget:
            return best
        self.budget -= price
        return tried


class UpperConfidence(ByOrders):
    """Searches a tree of join orders by upper confidence bounds; the reward of a chunk is from 0 to 1."""

    WEIGHT = 0.2
    """Of exploration; small beside rewards of up to 1."""

    def __init__(self, orders: Sequence[Order], made: Callable[[], int]) -> None:
        super().__init__(orders, made)
        self._visits: dict[Order, int] = defaultdict(int)
        self._rewards: dict[Order, float] = defaultdict(float)

    def learn(self, order: int, resistance: float) -> None:
        """Book the reward at every prefix of the order."""
        for length in range(len(self.orders[order]) + 1):
            prefix = self.orders[order][:length]
            self._visits[prefix] += 1
            self._rewards[prefix] += 1 / (1 + resistance)

    def pick(self) -> int:
        left = self.orders
        for length in range(1, len(self.orders[0]) + 1):
            chosen = max(dict.fromkeys(order[:length] for order in left), key=self._bound)
            left = [order for order in left if order[:length] == chosen]
        return self.orders.index(left[0])

    def _bound(self, prefix: Order) -> float:
        visits = self._visits[prefix]
        if not visits:
            return math.inf
        above = math.log(self._visits[prefix[:-1]])
        return self._rewards[prefix] / visits + self.WEIGHT * math.sqrt(above / visits)


PEERS: dict[str, type[ByOrders]] = {
    "POLAR, init once": InitOnce,
    "POLAR, backoff": Backoff,
    "POLAR, dynamic": Dynamic,
    "SkinnerDB, UCT": UpperConfidence,
}


KINDS: dict[str, Callable[[list[float]], float]] = {"mean": geometric_mean, "worst": max}


def orders_of(case: Case, stream: int) -> list[Order]:
    """Return different join orders without cross products that begin with the streamed relation."""
    places = {alias: place for place, alias in enumerate(case.tables)}
    pairs = [[places[side.split(".")[0]] for side in text.split(" = ")] for text in case.joins]
    draw, found = Random(case.name), dict[Order, None]()
    for _ in range(50 * ORDERS):
        order = [stream]
        while len(order) < len(places):
            near = {place for pair in pairs if {*pair} & {*order} for place in pair}
            order.append(draw.choice(sorted(near - {*order})))
        found[tuple(order)] = None
    return list(found)[:ORDERS]


def made(case: Case, settings: Settings, peer: type[ByOrders] | None, rows: int | None) -> tuple[int, int]:
    """Run one side of a join, the engine's own for no peer; return the intermediate tuples, and the results.

    Raises:
        ExecutionError: The result has another number of rows than expected.
    """
    batch, rows_of = settings["batch"], {alias: table.num_rows for alias, table in case.tables.items()}
    stream = max(rows_of, key=rows_of.__getitem__)
    options = Options(
        architecture="stems", batch_size=batch, transfer=False, by_content=False, seed=settings.seed
    )
    policy = POLICIES[BLIND](options) if settings.ablated else None
    if peer is not None:
        orders = orders_of(case, list(rows_of).index(stream))
        policy = peer(orders, lambda: started.figures().intermediate_tuples)
    started = Run(
        case.spec,
        all_batches(case.tables, batch),
        options,
        policy=policy,
        # One chunk at a time, so that each order is charged with what it makes.
        eddy=None if peer is None else Backpressure(None, 1),
        clock=VirtualClock(),
        stream=stream,
    )
    found = sum(count for counted in started.run() for count in counted.column(0).to_pylist())
    if rows not in (None, found):
        raise ExecutionError(f"{case.name} gave {found:,} rows, expected {rows:,}")
    return started.figures().intermediate_tuples, found


@figure(
    "beyond-peers",
    "Beyond the papers; Justen et al. 2024, Trummer et al. 2019",
    """
    worst_mean ≤ 1.05 | behind no peer by more than 5 %, in the geometric mean | | random
    """,
    parameters=(
        Parameter("size", 0.02, 0.001, 1.0, "", "of the tables over the benchmark's, of a million rows"),
        Parameter("joins", len(CASES), 1, len(CASES), "", "of the benchmark, the first ones"),
        Parameter("batch", 100, 1, 100_000, "tuples", "of a chunk"),
    ),
    broken={BLIND: "the default policy routes at random"},
    small={"size": 0.004},
)
def measure(settings: Settings) -> Outcome:
    """Head to head with POLAR and SkinnerDB.

    Over the joins of the robustness benchmark, at a fiftieth of their sizes, the default policy makes no more
    intermediate tuples than policies that route chunks along whole join orders. All sides stream the largest
    relation over SteMs of the others; no filters travel, so the order alone decides.
    """
    ratios: dict[str, list[float]] = {side: [] for side in PEERS}
    for case in cases(settings["size"], list(CASES)[: settings["joins"]]):
        ours, rows = made(case, settings, None, None)
        for side, peer in PEERS.items():
            theirs, _ = made(case, settings, peer, rows)
            ratios[side].append((1 + ours) / (1 + theirs))
    bars = {words: [of(each) for each in ratios.values()] for words, of in KINDS.items()}
    figures = {key(peer, kind): x for kind, bar in bars.items() for peer, x in zip(PEERS, bar, strict=True)}
    figures["worst_mean"] = max(bars["mean"])
    label = "tuples made by the default over those of the peer"
    return Outcome([Panel.grouped("Intermediate tuples", label, PEERS, bars)], figures)
