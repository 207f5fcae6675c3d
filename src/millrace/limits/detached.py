"""A coordinator that runs on an executor, for planning processes that executors do not reach.

The planning process speaks to it through Spark: a job of one task takes a sealed call there and brings a
sealed reply back, so that secrets are read by neither Spark nor its network. It ends with the executor, and
when nobody has been there for :data:`IDLE_SECONDS`: the planning process may be gone without a word.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from millrace.errors import ExecutionError
from millrace.limits.coordinator import Coordinator
from millrace.limits.event_loop import end_within

_NONCE = 12
_KEY = 32


class Seal:
    """What two sides know of each other that nobody else does.

    Args:
        own: The key of this side; made for this one pair.
        theirs: The public key of the other side, 32 bytes.

    Raises:
        ValueError: That is no public key.
    """

    def __init__(self, own: X25519PrivateKey, theirs: bytes) -> None:
        shared = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        key = HKDF(hashes.SHA256(), _KEY, salt=None, info=b"millrace coordinator").derive(shared)
        self._cipher = AESGCM(key)

    def seal(self, value: object, label: str) -> bytes:
        """Return a value, pickled, that opens with the same seal and label alone."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, pickle.dumps(value), label.encode())

    def open(self, sealed: bytes, label: str) -> Any:
        """Return what was sealed under a label.

        Raises:
            ValueError: It was sealed by somebody else, for something else, or was changed.
        """
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], label.encode())
        except InvalidTag:
            raise ValueError(f"not sealed as {label} by the other side") from None
        return pickle.loads(plain)  # noqa: S301  # the other side's own, as the cipher says


IDLE_SECONDS = 900.0
"""How long it waits for a task or a call before it ends."""

_LOOK_SECONDS = 2.0
_START_SECONDS = 30.0
_END_SECONDS = 120.0
_DIAL_SECONDS = 5.0
_CALL_SECONDS = 60.0
_LARGEST = 1 << 26
_LARGEST_CALL = 1 << 22
_MOST_CALLERS = 8
_SAID_SECONDS = 10.0
"""For a call to come: who calls is a stranger until then, with few places and little memory for all."""

_MOST_REPLIES = 64
"""Replies kept for tasks that Spark runs again: a call is done once."""

METHODS = frozenset({"register", "progress", "spent", "failed", "release", "ping", "close"})

_BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from millrace.limits.detached import serve; serve()"
)


class Started(NamedTuple):
    """What a task tells of the coordinator that it has started; in no part secret.

    Attributes:
        host: Where other executors reach it, and calls.
        port: Where calls reach it.
        public: Its public key.
        sealed: Its :class:`Address`, sealed as ``"address"``.
    """

    host: str
    port: int
    public: bytes
    sealed: bytes


@dataclass(frozen=True)
class Call:
    """Some calls of methods, one after the other.

    Attributes:
        number: Of this message; one with the same number is the same message.
        methods: Of :data:`METHODS`, with their arguments.
    """

    number: int
    methods: tuple[tuple[str, tuple[Any, ...]], ...]


def start(public: bytes, host: str, port: int, bind: str | None, idle: float) -> Started:
    """Start a coordinator in a process that goes on when the caller, a task, has ended.

    Args:
        public: The public key of who will call it.
        host: An address of this machine that executors reach.
        port: TCP port for tasks; calls take the next one. 0 takes free ones.
        bind: Address to listen on; None for the host.
        idle: Seconds after which it ends when nobody is there.

    It also ends with the process that has started the caller, which lives as long as the executor.

    Raises:
        ExecutionError: It does not start, or cannot listen; says why.
    """
    command = [sys.executable, "-c", _BEGIN, json.dumps(sys.path)]
    wanted: dict[str, Any] = {"public": public.hex(), "host": host, "port": port, "bind": bind, "idle": idle}
    wanted["beside"] = os.getppid()
    try:
        child = subprocess.Popen(  # noqa: S603  # ourselves
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
    except OSError as error:
        raise ExecutionError(f"cannot start a process for the limits of jobs ({error})") from error
    assert child.stdin is not None and child.stdout is not None
    patience = threading.Timer(_START_SECONDS, _kill, [child.pid])
    patience.start()
    try:
        with suppress(BrokenPipeError):  # what it says tells why
            child.stdin.write(json.dumps(wanted) + "\n")
            child.stdin.close()
        said = child.stdout.read()  # to the end: it then keeps nothing of this task
        child.wait()
    finally:
        patience.cancel()
        child.stdout.close()
    last = (said.strip().splitlines() or [f"it said nothing within {_START_SECONDS:g} s"])[-1]
    try:
        told = json.loads(last)
    except ValueError:
        raise ExecutionError(f"a process for the limits of jobs did not start: {last}") from None
    if "error" in told:
        raise ExecutionError(told["error"])
    return Started(host, told["port"], bytes.fromhex(told["public"]), bytes.fromhex(told["sealed"]))


def _kill(session: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def call(host: str, port: int, sealed: bytes) -> bytes:
    """Take a sealed call to a coordinator, and return its sealed reply.

    Raises:
        ExecutionError: It is not there any more, or does not answer.
    """
    try:
        with socket.create_connection((host, port), _DIAL_SECONDS) as dialled:
            dialled.settimeout(None)
            connection = Connection(dialled.detach())
        with connection:
            connection.send_bytes(sealed)
            if connection.poll(_CALL_SECONDS):
                return connection.recv_bytes(_LARGEST)
            problem = f"no reply within {_CALL_SECONDS:g} s"
    except (OSError, EOFError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise ExecutionError(
        f"the coordinator on the executor at {host}:{port} is not there any more ({problem})"
    )


class Replies:
    """Does calls of the coordinator's methods, each once, however often it is said."""

    def __init__(self, seal: Seal, coordinator: Coordinator) -> None:
        self._seal = seal
        self._coordinator = coordinator
        self._known: OrderedDict[int, bytes] = OrderedDict()
        self._gone = -1
        self._one = threading.Lock()
        self.over = threading.Event()
        self.latest = time.monotonic()

    def to(self, sealed: bytes) -> bytes:
        """Return the sealed reply to a sealed call.

        Raises:
            ValueError: It is not from who may call, or was done long ago.
        """
        asked: Call = self._seal.open(sealed, "call")
        with self._one:
            self.latest = time.monotonic()
            if asked.number <= self._gone:
                raise ValueError(f"call {asked.number} was done long ago")
            if asked.number not in self._known:
                self._known[asked.number] = self._seal.seal(self._done(asked), f"reply {asked.number}")
                while len(self._known) > _MOST_REPLIES:
                    self._gone = max(self._gone, self._known.popitem(last=False)[0])
            return self._known[asked.number]

    def _done(self, asked: Call) -> tuple[Exception | None, Any]:
        result: Any = None
        try:
            for method, arguments in asked.methods:
                result = self._call(method, arguments)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            return error.with_traceback(None), None
        return None, result

    def _call(self, method: str, arguments: Sequence[Any]) -> Any:
        if method not in METHODS:
            raise ValueError(f"no method {method!r}")
        if method == "close":
            self.over.set()
            return None
        return None if method == "ping" else getattr(self._coordinator, method)(*arguments)


def serve() -> None:
    """Be the process: say where it is, then serve until it is told to end or nobody has come for long."""
    wanted = json.loads(sys.stdin.readline())
    if os.fork():
        os._exit(0)  # whom the task waits for; the other is nobody's child
    try:
        coordinator = Coordinator(wanted["host"], wanted["port"], wanted["bind"])
        port = wanted["port"] + 1 if wanted["port"] else 0
        listener = Listener((wanted["bind"] or wanted["host"], port))
    except (ExecutionError, OSError) as error:
        _say({"error": f"{error}"})
        return
    own = X25519PrivateKey.generate()
    seal = Seal(own, bytes.fromhex(wanted["public"]))
    told = {
        "port": listener.address[1],
        "public": own.public_key().public_bytes_raw().hex(),
        "sealed": seal.seal(coordinator.address, "address").hex(),
    }
    _say(told)
    _let_go()
    replies = Replies(seal, coordinator)
    _accept(listener, replies)
    seen = time.monotonic()
    while (
        not replies.over.is_set()
        and _lives(wanted["beside"])
        and time.monotonic() - max(seen, replies.latest) < wanted["idle"]
    ):
        replies.over.wait(min(_LOOK_SECONDS, wanted["idle"]))
        if coordinator.connected:
            seen = time.monotonic()
    end_within(_END_SECONDS)
    coordinator.close()


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _let_go() -> None:
    """Close what the task that started this process waits for, which is read to its end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _accept(listener: Listener, replies: Replies) -> None:
    for _ in range(_MOST_CALLERS):
        threading.Thread(target=_answer_all, args=(listener, replies), daemon=True).start()


def _answer_all(listener: Listener, replies: Replies) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError as error:
            if error.errno is None:  # the listener is closed
                return
            continue  # the caller hung up
        # It died, says nothing, or is nobody that may call.
        with connection, suppress(OSError, EOFError, ValueError):
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                wait = struct.pack("ll", int(_SAID_SECONDS), int(_SAID_SECONDS % 1 * 1e6))
                same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            connection.send_bytes(replies.to(connection.recv_bytes(_LARGEST_CALL)))
