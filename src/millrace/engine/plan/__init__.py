"""What a block is: relations, keys, conditions, spanning trees, and the expressions in them."""
