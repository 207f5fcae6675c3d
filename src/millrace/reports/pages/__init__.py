"""Reports as pages of HTML: one file, no script, nothing to fetch."""
