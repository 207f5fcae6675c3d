"""The kernels are plain Python too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_kernels_pass_their_tests_as_interpreted_python() -> None:
    """Nothing in them relies on the compiler: typing, wrap-around and bounds are the same without it."""
    here = Path(__file__).parent
    # numpy's scalars warn where compiled integers wrap around silently, which hashing relies on.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore:overflow:RuntimeWarning",
    ]
    files = [str(here / f"test_{name}.py") for name in ("multimap", "hashing", "tally")]
    done = subprocess.run(
        command + files,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
