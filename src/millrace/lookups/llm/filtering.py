"""A language model as a predicate: is this so, of each row?"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from millrace.limits.request import Answered
from millrace.limits.secrets import Secrets
from millrace.lookups.llm.endpoint import Endpoint, Model, Priced, Prompt
from millrace.predicates.service import Service

_SYSTEM = "You decide questions. Answer each with true or false."
_ITEM = {"type": "boolean"}


@dataclass(frozen=True)
class ModelFilter(Service):
    """Called with the prompt's columns, a list of values each; travels to the tasks.

    ``width`` bounds its requests under way at once.
    """

    model: Model
    prompt: Prompt
    width: int

    @property
    def __signature__(self) -> Signature:
        """What arguments it takes: a value for each column."""
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.prompt.columns])

    @property
    def identity(self) -> str:
        """What it asks, as text without secrets."""
        # Answers that were paid for are kept under it: it outlives names of functions.
        return f"llm_filter {self.model.asks} {self.prompt.text}"

    @property
    def cost(self) -> Priced | None:
        """What tells the cost of a request, where the model has prices."""
        return Priced(self.model) if self.model.price_read or self.model.price_written else None

    def open(self, secrets: Secrets) -> ModelFilterSession:
        """Return a session, which connects with its first call."""
        return ModelFilterSession(self, secrets)


class ModelFilterSession:
    """An open :class:`ModelFilter`."""

    def __init__(self, of: ModelFilter, secrets: Secrets) -> None:
        self._prompt = of.prompt
        self._endpoint = Endpoint(of.model, secrets, of.width)

    async def ask(self, *columns: list[Any]) -> Answered:
        """Return a truth for each row, with what they took.

        Raises:
            Refused: The endpoint did not answer, or not with as many truths.
        """
        names = self._prompt.columns
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        truths, usage = await self._endpoint.ask(_SYSTEM, list(map(self._prompt.fill, rows)), _ITEM)
        if not all(type(truth) is bool for truth in truths):
            raise self._endpoint.unfit("an answer is neither true nor false", usage)
        return Answered(truths, usage)

    async def close(self) -> None:
        await self._endpoint.close()
