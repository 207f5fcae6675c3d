"""The peak of memory: of a task where the system can tell, in bytes everywhere."""

from __future__ import annotations

import builtins
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from millrace.engine import peak
from millrace.engine.peak import begin_peak, peak_memory

SIZE = 200 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets an earlier peak")
def test_a_peak_before_the_beginning_does_not_count() -> None:
    """What an earlier task of the same worker took is not this one's."""
    held = np.ones(SIZE, np.uint8)
    before = peak_memory()
    assert before >= held.nbytes
    del held
    assert peak_memory() >= SIZE
    assert begin_peak()
    assert peak_memory() <= before - SIZE // 2


@pytest.mark.parametrize(("platform", "expected"), [("darwin", 5000), ("freebsd14", 5000 * 1024)])
def test_a_peak_is_in_bytes_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, expected: int
) -> None:
    """macOS counts bytes where others count kilobytes; without the files of Linux nothing is forgotten."""
    monkeypatch.setattr(peak, "_STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(peak, "_CLEAR", tmp_path / "nowhere" / "clear_refs")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5000))
    assert not begin_peak()
    assert peak_memory() == expected


def test_windows_has_a_counter_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no module for the others' there."""
    real = builtins.__import__

    def without(name: str, *args: object, **named: object) -> object:
        if name == "resource":
            raise ImportError(name)
        if name == "psutil":
            memory = SimpleNamespace(peak_wset=7000)
            return SimpleNamespace(Process=lambda: SimpleNamespace(memory_info=lambda: memory))
        return real(name, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(peak, "_STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(builtins, "__import__", without)
    assert peak_memory() == 7000
