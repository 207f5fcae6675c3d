"""Which joins are a block: its inputs, conditions, semi joins and predicates, and whether it pays."""
