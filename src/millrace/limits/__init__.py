"""What all tasks of a job share: calls under way, calls a second, budgets, and the answers to questions.

A coordinator beside the planning process, or elsewhere, keeps them; tasks reach it as clients over encrypted
connections. The invariant: all tasks together call no more than the limits allow, and a job asks for no key
twice, but what was under way where a connection broke, and what a cache has lost.
The door loads nothing: importers name the module they need, so a query without limits needs no extra.
"""

from millrace.errors import require


def check_libraries(purpose: str) -> None:
    """Raise :class:`millrace.errors.MissingExtra` unless what clients and coordinators load is installed."""
    require("lookups", purpose, "cryptography", "msgspec", "tenacity")
