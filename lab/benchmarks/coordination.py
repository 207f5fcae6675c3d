"""What the coordinator of a job carries: permits a second, how long one takes, memory.

Tasks are simulated by loops in this process, several of which follow each other on a connection, as the tasks
of a worker do. Each asks for a permit, gives it back and asks again. The coordinator has a process of its
own; everything goes over the loopback interface, encrypted as always.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from millrace.engine.peak import peak_memory
from millrace.limits.client import Client
from millrace.limits.event_loop import runner
from millrace.limits.process import CoordinatorProcess
from millrace.limits.registration import Address, Settings

TASKS, CONNECTIONS = 2000, 500

_SETTINGS = Settings(max_in_flight=100_000)


def bench(tasks: int, connections: int, seconds: float, rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark.

    Args:
        tasks: Simulated tasks.
        connections: That they share, each one task after the other.
        seconds: That a round takes about.
        rounds: Each with a coordinator of its own.
        ticker: Told of each round.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: The coordinator's process ended.
    """
    harness.check_rounds(rounds)
    rates, waits, sizes = list[float](), list[float](), list[float]()
    for number in range(rounds):
        ticker.says(f"round {number + 1}")
        with closing(CoordinatorProcess()) as coordinator:
            with runner() as running:
                taken, spent = running.run(_load(coordinator.address, tasks, connections, seconds))
            sizes.append(peak_memory(coordinator.pid) / 1e6)
        taken.sort()
        rates.append(len(taken) / spent)
        waits.append(1000 * taken[int(0.99 * len(taken))])
        ticker.tick()
    figures = {
        "permits_per_s": harness.median(rates),
        "permit_p99_ms": harness.median(waits),
        "memory_mb": harness.median(sizes),
    }
    rows = [
        {"what": name, "median": figure, "spread": harness.spread(found)}
        for (name, figure), found in zip(figures.items(), (rates, waits, sizes), strict=True)
    ]
    targets = {
        "permits_per_s": Target(low=20_000),
        "permit_p99_ms": Target(high=50),
        "memory_mb": Target(high=200),
    }
    notes = [f"{tasks:,} tasks on {connections:,} connections, all in one process beside the coordinator's"]
    return Outcome("coordination", tasks, rounds, figures, rows, targets, notes)


async def _load(address: Address, tasks: int, connections: int, seconds: float) -> tuple[list[float], float]:
    """Return how long each permit took, and how long all of them did."""
    clients = [await Client.limited(address, "load/0", _SETTINGS) for _ in range(connections)]
    waits: list[float] = []
    each = seconds * connections / tasks

    async def work(client: Client, count: int) -> None:
        for _ in range(count):
            end = time.perf_counter() + each
            while (began := time.perf_counter()) < end:
                async with client.permit():
                    waits.append(time.perf_counter() - began)

    shares = [tasks // connections + (number < tasks % connections) for number in range(connections)]
    began = time.perf_counter()
    await asyncio.gather(*(work(client, share) for client, share in zip(clients, shares, strict=True)))
    spent = time.perf_counter() - began
    await asyncio.gather(*(client.close() for client in clients))
    return waits, spent
