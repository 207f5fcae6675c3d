"""Join state: base tuples, SteMs, STAIRs, and the indexes under them."""
