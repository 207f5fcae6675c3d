"""The router: an eddy, its routing table, buffer and statistics."""
