"""What a name means, as Spark resolves it."""
