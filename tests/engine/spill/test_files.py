"""Spill files: gone in every case, and clear errors when something is wrong with them or with a budget."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.engine.spill import folder
from millrace.engine.spill.run_of import run_of
from millrace.engine.spill.spilling import SpillingEddy
from millrace.errors import ExecutionError, InputError, OptionError
from millrace.options import ALGORITHMS, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.spill.runs import left, spilled
from tests.engine.spill.test_cases import BUDGET, large


@pytest.fixture(params=ALGORITHMS)
def options(request, tmp_path) -> Options:
    """A tight budget, for each algorithm."""
    return Options(memory_budget=BUDGET, algorithm=request.param, spill_folder=str(tmp_path), batch_size=16)


def test_nothing_is_left_after_success(options, tmp_path):
    """There were files, and there are none."""
    _, eddy = spilled(large(40), options)
    assert eddy.tally.files > 0
    assert left(tmp_path) == []


def test_files_go_as_soon_as_they_have_been_joined(options, tmp_path):
    """While results come, fewer and fewer files are left."""
    case = large(40)
    eddy = SpillingEddy(case.spec, batches(case, 4), options)
    counts = [len(left(tmp_path)) for _ in eddy.run()]
    if options.algorithm == "sort_merge":  # every run reaches to the last range of keys
        assert counts[-1] == max(counts)
    else:
        assert counts[-1] < max(counts)


@pytest.mark.parametrize("error", [RuntimeError("the source failed"), KeyboardInterrupt()])
@pytest.mark.parametrize("alias", ["a", "b", "c"])
def test_nothing_is_left_after_a_failure(options, tmp_path, alias, error):
    """A source that fails half-way, or Ctrl-C."""
    case = large(40)
    sources = batches(case, 4)

    def failing():
        yield from sources[alias][: len(sources[alias]) - 1]
        raise error

    eddy = SpillingEddy(case.spec, {**sources, alias: failing()}, options)
    with pytest.raises(type(error)):
        list(eddy.run())
    assert left(tmp_path) == []


def test_nothing_is_left_when_the_consumer_stops_early(options, tmp_path):
    """Closing the results ends the run."""
    case = large(40)
    results = SpillingEddy(case.spec, batches(case, 4), options).run()
    next(results)
    assert left(tmp_path) != []
    results.close()
    assert left(tmp_path) == []


def test_a_full_disk(options, tmp_path, monkeypatch):
    """The error names the folder and what would help, and no file is left. The device is really full."""
    monkeypatch.setattr(folder.SpillFolder, "open", lambda self, path: pa.OSFile("/dev/full", "wb"))
    with pytest.raises(ExecutionError, match=r"no space is left in .*millrace-spill.*bytes.*spill_folder"):
        spilled(large(40), options)
    assert left(tmp_path) == []


def test_a_disk_that_fills_up_later(options, tmp_path, monkeypatch):
    """What had been written by then is told."""
    true = folder.SpillFolder.open
    count = iter(range(10**6))

    def opened(self, path):
        return true(self, path) if next(count) < 3 else pa.OSFile("/dev/full", "wb")

    monkeypatch.setattr(folder.SpillFolder, "open", opened)
    with pytest.raises(ExecutionError, match=r"after [1-9][0-9,]* bytes had been spilled"):
        spilled(large(40), options)
    assert left(tmp_path) == []


def test_another_failure_of_writing(options, tmp_path, monkeypatch):
    """The system's words are passed on."""

    def refused(self, path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folder.SpillFolder, "open", refused)
    with pytest.raises(ExecutionError, match=r"spilling to .* failed .*Input/output error"):
        spilled(large(40), options)
    assert left(tmp_path) == []


def test_a_file_that_vanishes(options, tmp_path, monkeypatch):
    """Somebody cleans up the folder while the join runs."""
    true = folder.SpillFile.batch

    def vanished(self, number):
        Path(self.path).unlink(missing_ok=True)
        return true(self, number)

    monkeypatch.setattr(folder.SpillFile, "batch", vanished)
    with pytest.raises(ExecutionError, match=r"cannot be read back"):
        spilled(large(40), options)
    assert left(tmp_path) == []


def test_a_budget_too_small_for_a_batch(options, tmp_path):
    """The error tells the least budget, and with that the run goes through."""
    case = large(40)
    with pytest.raises(OptionError, match=r"memory_budget is 100 bytes.*at least") as caught:
        spilled(case, Options(memory_budget=100, algorithm=options.algorithm, spill_folder=str(tmp_path)))
    assert left(tmp_path) == []
    assert "batch_size to" in str(caught.value)


@pytest.mark.parametrize(("name", "what"), [("missing", "does not exist"), ("file", "is not a folder")])
def test_a_folder_that_cannot_be_used(tmp_path, name, what):
    """It is found before a source is read."""
    (tmp_path / "file").touch()
    case = large(40)
    options = Options(memory_budget=BUDGET, spill_folder=str(tmp_path / name))
    with pytest.raises(OptionError, match=what):
        SpillingEddy(case.spec, dict.fromkeys(case.tables, _unread()), options)


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    """Whether the check says so, or only the attempt."""
    case = large(40)
    options = Options(memory_budget=BUDGET, spill_folder="/proc")
    with pytest.raises(OptionError, match=r"'/proc'"):
        list(SpillingEddy(case.spec, dict.fromkeys(case.tables, _unread()), options).run())
    monkeypatch.setattr(folder.os, "access", lambda *_: False)
    with pytest.raises(OptionError, match="may not write"):
        SpillingEddy(case.spec, {}, Options(memory_budget=BUDGET, spill_folder=str(tmp_path)))


def test_no_budget():
    """Then there is nothing to keep to, and ``run_of`` returns what runs without one."""
    case = large(40)
    with pytest.raises(OptionError, match="memory_budget is None"):
        SpillingEddy(case.spec, batches(case, 4), Options())
    assert not isinstance(run_of(case.spec, batches(case, 4)), SpillingEddy)
    assert isinstance(run_of(case.spec, batches(case, 4), Options(memory_budget=1000)), SpillingEddy)
    single = block({"a": case.tables["a"]}, [])
    assert not isinstance(run_of(single.spec, batches(single, 4), Options(memory_budget=1000)), SpillingEddy)


def test_a_relation_with_set_semantics_cannot_be_streamed(options):
    """As without a budget, and before a source is read."""
    case = large(40, distinct=("a",))
    with pytest.raises(InputError, match="set semantics"):
        SpillingEddy(case.spec, dict.fromkeys(case.tables, _unread()), options, stream="a")


def _unread():
    raise AssertionError("a source was read")
    yield
