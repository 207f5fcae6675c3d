"""A text becomes a plan: the steps in order, what they share, what they yield, and its cache."""
