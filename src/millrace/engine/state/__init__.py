"""Join state: base tuples, SteMs, STAIRs, and the indexes under them.

Invariant: tuples that match meet once, by timestamps in SteMs and by invariants A and B in STAIRs.
"""
