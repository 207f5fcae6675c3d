"""Kernels are compiled when they are called, once for a machine, wherever files can be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from millrace.engine import kernels
from millrace.engine.kernels import hashing, multimap, tally
from millrace.engine.kernels.compiling import Kernel

MADE = {
    f"{module.__name__}.{name}": each
    for module in (hashing, multimap, tally)
    for name, each in vars(module).items()
    if isinstance(each, Kernel) and each.arguments is not None  # others are parts of these
}
PLACE = """
import numpy as np
from millrace.engine.kernels.hashing import mix
mix(np.arange(3))
made = mix.dispatcher
print(made.stats.cache_path, sum(made.stats.cache_hits.values()), sum(made.stats.cache_misses.values()))
"""


def process(code: str, **environment: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(started: subprocess.Popen[str]) -> list[str]:
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    return out.split()


@pytest.fixture
def read_only(tmp_path: Path) -> dict[str, object]:
    """The kernels where nothing can be written beside them nor at home: files stand where folders should."""
    package = tmp_path / "installed" / "millrace"
    copied = package / "engine" / "kernels"
    shutil.copytree(Path(kernels.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    for file in (package / "__init__.py", package / "engine" / "__init__.py", copied / "__pycache__", home):
        file.write_text("")
    temporary.mkdir()
    return {
        "PYTHONPATH": package.parent,
        "HOME": home,
        "XDG_CACHE_HOME": home / "cache",
        "TMPDIR": temporary,
        "NUMBA_CACHE_DIR": "",
        "NUMBA_DISABLE_JIT": "0",
    }


def test_each_kernel_is_compiled_in_one_version() -> None:
    """Views of Arrow's memory cannot be written, and may begin anywhere; numpy's own arrays can."""
    codes = np.arange(5)
    frozen = np.frombuffer(b" " + codes.tobytes(), np.int64, offset=1)
    assert not frozen.flags.writeable and not frozen.flags.aligned
    assert kernels.mix(codes).tolist() == kernels.mix(frozen).tolist()
    assert kernels.combine(codes, frozen).tolist() == kernels.combine(frozen, codes).tolist()
    assert not [name for name, kernel in MADE.items() if len(kernel.dispatcher.signatures) != 1]
    # Other types are refused, rather than compiled for in the middle of a run.
    with pytest.raises(TypeError, match="No matching definition"):
        kernels.mix(np.arange(3, dtype=np.float32))


def test_a_task_that_only_filters_loads_no_compiler() -> None:
    """Loading numba takes as long as filtering a million rows."""
    code = """
import sys
from millrace.engine.plan.expressions import Call
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import ROW, filtering, numbered
odd = Call(PredicateSpec("odd", lambda n: n % 2 == 1, "row"), (ROW,))
print(sum(mask.true_count for mask in filtering(numbered(10), [odd]).run()), "numba" in sys.modules)
"""
    assert answer(process(code)) == ["5", "False"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no modes here")
def test_nothing_is_run_from_a_folder_that_others_can_write(read_only: dict[str, object]) -> None:
    """What is compiled is code; then each process compiles for itself."""
    folder = Path(str(read_only["TMPDIR"])) / f"millrace-kernels-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert answer(process(PLACE, **read_only))[0] == "None"
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked this way")
@pytest.mark.parametrize("asked", ["", "asked"])
def test_of_processes_that_start_together_one_compiles(read_only, tmp_path, asked) -> None:
    """The other waits for what it writes, where NUMBA_CACHE_DIR says or else among temporary files."""
    folder = tmp_path / (asked or "temporary")
    place = {**read_only, "NUMBA_CACHE_DIR": folder if asked else ""}
    started = [process(PLACE, **place) for _ in range(2)]
    (one, *first), (other, *second) = map(answer, started)
    assert one == other and one.startswith(f"{folder}{os.sep}")
    assert sorted((first, second)) == [["0", "1"], ["1", "0"]]


# The kernels are plain Python too.


def test_the_kernels_pass_their_tests_as_interpreted_python() -> None:
    """Nothing in them relies on the compiler: typing, wrap-around and bounds are the same without it."""
    here = Path(__file__).parent
    # numpy's scalars warn where compiled integers wrap around silently, which hashing relies on.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore:overflow:RuntimeWarning"]
    few = "not memory_of_a_row and not regular_distances"  # which take many rows
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", few, *map(str, here.glob("test_[mk]*.py"))],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "MILLRACE_PROFILE": "few"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
