"""What the papers left open, in the form of their experiments."""
