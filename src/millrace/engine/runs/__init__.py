"""Running a block in one task."""
