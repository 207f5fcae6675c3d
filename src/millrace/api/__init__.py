"""What users call: sessions, queries and their results."""
