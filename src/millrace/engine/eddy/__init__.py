"""The eddy: what arrives is routed through operators until it leaves; its rules, decisions and accounts.

Invariants: what is legal is known before a policy is asked, so no policy, not even a random one, can break
an answer. A block is checked before any of its sources is read, and state is made in the task.
"""
