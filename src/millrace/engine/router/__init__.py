"""The router: an eddy, its routing table, buffer and statistics.

Invariant: what is legal is known before a policy is asked, so no policy, not even a random one, can break
an answer.
"""
