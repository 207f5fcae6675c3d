"""Where base tuples come from, without Spark: direct scans of Parquet files."""
