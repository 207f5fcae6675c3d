"""Is there a Java that Spark can run on?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from millrace.errors import SetupError

NEEDED = 17
_ADVICE = (
    f"Spark needs Java {NEEDED} or newer: install it (Debian, Ubuntu: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) and run this again"
)


def check_java() -> None:
    """Raise unless Java is there and new enough.

    Raises:
        SetupError: It says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        raise SetupError(f"{_ADVICE} (JAVA_HOME is {home})" if home else _ADVICE)
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Java
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < NEEDED:
        found = f"version {version[1]}" if version else "no version"
        raise SetupError(f"{_ADVICE} ({program} has {found})")
