"""Language models behind OpenAI-compatible endpoints, as predicates and as lookups."""
