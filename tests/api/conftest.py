"""The small tables of the front's tests."""

from tests.sql.conftest import files, rows, same, scans, views

__all__ = ["files", "rows", "same", "scans", "views"]
