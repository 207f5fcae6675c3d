"""A task does not wait for its input, nor the next one for a look at all modules."""

from __future__ import annotations

import gc
import socket
import sys
import types

import pytest

from millrace.spark.worker import acknowledge, keep_modules, worker_task

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other kernels have no such setting")


@pytest.fixture
def connected():
    """Both ends of a connection within this machine, and the socket that listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        yield near, far


@linux
def test_connections_of_this_machine_are_asked_before_a_task_reads(connected, monkeypatch):
    """Where there is such a setting."""
    near, far = connected

    def asked() -> list[int]:
        return [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for end in (near, far)]

    @worker_task
    def task(rows):
        yield asked()
        yield from rows

    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert list(task([7])) == [[1, 1], 7]
    before = acknowledge()
    assert before >= 2
    near.close()
    assert acknowledge() < before
    monkeypatch.delattr(socket, "TCP_QUICKACK")
    assert acknowledge() == 0


def test_modules_are_not_looked_at_for_garbage(monkeypatch):
    """What is made later is; and whatever a new module brought is kept once more."""
    try:
        monkeypatch.setitem(sys.modules, "one_more_than_before", types.ModuleType("one_more_than_before"))
        assert keep_modules()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        assert not keep_modules()
        loop: list[object] = []
        loop.append(loop)
        del loop
        assert gc.collect() > 0
        brought = types.ModuleType("yet_another")
        brought.__dict__["lists"] = [[] for _ in range(1000)]  # more than may have gone meanwhile
        monkeypatch.setitem(sys.modules, "yet_another", brought)
        assert keep_modules()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
