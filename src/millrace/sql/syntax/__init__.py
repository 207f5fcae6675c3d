"""A text becomes a tree with places, FROM clauses, scopes and edits."""
