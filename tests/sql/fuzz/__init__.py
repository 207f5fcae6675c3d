"""Random SQL over small tables: what Millrace answers must be what Spark answers."""
