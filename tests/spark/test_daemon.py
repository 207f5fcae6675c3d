"""Workers that are forked with Millrace loaded are as others are."""

from __future__ import annotations

import subprocess
import sys

FORKED = """
import os, sys
from millrace.spark import daemon

daemon.load()
import numpy

for _ in range(3):
    if not os.fork():
        print(numpy.random.random(), "millrace.spark.tasks" in sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_draw_numbers_of_their_own():
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert len(set(lines)) == 3 and all(line.endswith("True") for line in lines)
