"""Every deliberately broken rule has a test that notices, and ``broken_rules.txt`` lists them all.

After a change, write it anew:

    python -m pytest --collect-only -q -m broken_rule tests | grep :: | sort > tests/broken_rules.txt
"""

from __future__ import annotations

from pathlib import Path

from tests.conftest import BROKEN_RULES, COLLECTED

LIST = Path(__file__).with_name("broken_rules.txt")


def test_none_is_lost_and_none_is_left_to_the_night(pytestconfig):
    """Of the files that were collected: what is listed is there, and what is there is listed."""
    files, found = pytestconfig.stash[COLLECTED], pytestconfig.stash[BROKEN_RULES]
    listed = {line for line in LIST.read_text(encoding="utf-8").splitlines() if line.split("::")[0] in files}
    assert listed == found.keys()
    assert not any(found.values()), "at night only"
