"""Tables that are asked by key, over HTTP, in databases, by functions and by language models.

A source says what to ask and on what terms: it is frozen, travels with the plan and has no values of secrets.
A session is a source that one task has opened. The invariant: each key is asked for once a job, as often
again as its terms allow, and its rows go to every task that wants them. Importers name the modules.
"""

from millrace.lookups.source import Refused

__all__ = ["Refused"]
