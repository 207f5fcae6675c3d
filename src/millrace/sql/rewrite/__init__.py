"""The text around a block: what is read of it, under which names, and lookup tables that no block takes."""
