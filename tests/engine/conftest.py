"""Laws of the engine are marked as such, so that they can be run with more examples."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what Hypothesis draws examples for; tests that draw within themselves are marked in place."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and "engine" in item.path.parts:
            item.add_marker(pytest.mark.law)
