"""The small tables of the front's tests."""

from tests.front.conftest import files, same, views

__all__ = ["files", "same", "views"]
