"""What arrives, from scans and indexes, and in which order."""
