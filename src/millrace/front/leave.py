"""How a step of the front says that something stays with Spark."""


class Leave(Exception):
    """A FROM clause stays with Spark; the message says why. Never leaves this package."""
