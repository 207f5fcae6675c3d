"""Planning processes that join a coordinator elsewhere, and speak to it over the connection of a client.

The connection may break. The planning process joins again, by the same name, and has what it has registered.

One says :class:`~millrace.limits.messages.MethodCall`, and hears ``MethodResult`` of the same number. The
welcome tells the time ``now`` by the coordinator's clock. All that is told is data: nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millrace import errors
from millrace.errors import ExecutionError, MillraceError, encodable
from millrace.limits.budget import Spent
from millrace.limits.clock import Clock
from millrace.limits.messages import Lost, Message, MethodCall, MethodResult, Welcome
from millrace.limits.progress import FailedKey, LookupProgress
from millrace.limits.registration import Address, Registration
from millrace.limits.session import OrderedSession

if TYPE_CHECKING:
    from millrace.limits.coordinator import Coordinator

DRIVERS = "/"
"""The scope of planning processes at a coordinator: runs have no slash, so no run's token opens it."""

SECRET = "MILLRACE_COORDINATOR_SECRET"  # noqa: S105  # its name
"""The environment variable that has the secret of a coordinator elsewhere, on both sides."""

METHODS: dict[str, tuple[Any, Any]] = {
    "register": (tuple[str, tuple[Registration, ...]], None),
    "progress": (tuple[str], list[LookupProgress]),
    "spent": (tuple[str], list[Spent]),
    "failed": (tuple[str], list[FailedKey]),
    "release": (tuple[str], None),
    "stop": (tuple[dict[str, float]], None),
}
"""What may be called: the types of the arguments, and that of the result."""


class Driver(OrderedSession):
    """One planning process; its clients are its connections. ``seen`` is when one of them ended last."""

    def __init__(
        self, coordinator: Coordinator, name: str, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop)
        self._coordinator = coordinator
        self._name = name
        self._clock = clock
        self.seen = clock.now()

    def welcome(self) -> Welcome:
        return Welcome(now=time.monotonic())

    def handle(self, client: int, message: Message) -> None:
        """Have a call done, in this planning process's own thread: a large cache may have to be read."""
        if not isinstance(message, MethodCall) or message.method not in METHODS:
            raise ValueError("no call of a planning process")
        self._do_for(client, partial(self._answer, client, message))

    def leave(self, client: int) -> None:
        super().leave(client)
        self.seen = self._clock.now()

    def close(self) -> None:
        """Take no more calls; does not wait."""
        self._end_thread()

    def _answer(self, client: int, call: MethodCall) -> None:
        answer = MethodResult(call.number)
        try:
            given = msgspec.convert(json.loads(call.arguments), METHODS[call.method][0], dec_hook=_made)
            more = {"driver": self._name} if call.method == "register" else {}
            answer.result = msgspec.json.encode(getattr(self._coordinator, call.method)(*given, **more))
        except Exception as error:  # noqa: BLE001  # the caller's
            answer.error = describe_failure(error)
        self._say(client, answer)

    def _broke(self, error: Exception) -> None:
        for deliver in self._clients.values():
            deliver(Lost(encodable(f"{type(error).__name__}: {error}")))


def encode_call(number: int, method: str, arguments: tuple[Any, ...]) -> MethodCall:
    """Return a call as it is sent."""
    told = msgspec.to_builtins(arguments, enc_hook=str)  # of paths
    return MethodCall(number, method, json.dumps(told).encode())


def describe_failure(error: Exception) -> tuple[str, str]:
    """Return what a call has raised as it is sent."""
    return type(error).__name__, encodable(str(error))


def decode_result(method: str, answer: MethodResult) -> Any:
    """Return what a call has returned, or raise what it has raised."""
    if answer.error is not None:
        kind, why = answer.error
        known = ValueError if kind == "ValueError" else getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, MillraceError | ValueError):
            raise known(why)
        raise ExecutionError(f"{kind}: {why}")
    return msgspec.json.decode(answer.result, type=Address if method == "start" else METHODS[method][1])


def _made(kind: type, value: Any) -> Any:
    return kind(value)
