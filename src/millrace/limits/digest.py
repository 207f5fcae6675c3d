"""Keys for the arguments of a call: equal arguments have equal keys, in every process."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

KEY_BYTES = 16

# Their repr tells value and type exactly. An object's own repr might not: it may name a memory
# address, which means something else in each process, or leave out the middle of an array.
_EXACT = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        bytearray,
        decimal.Decimal,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
    }
)


def digest(arguments: Sequence[Any]) -> bytes:
    """Return a key of ``KEY_BYTES`` bytes for the arguments of one call.

    Values that are equal but of different types (1, 1.0, True) have different keys: a function can
    tell them apart.
    """
    return blake2b(_text(arguments).encode(), digest_size=KEY_BYTES).digest()


def _text(value: Any) -> str:
    kind = type(value)
    if kind in _EXACT:
        return repr(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(key)}:{_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple | list):
        fields = getattr(value, "__fields__", ())  # of a struct, as Spark makes them
        return f"{kind.__name__}{fields!r}[{','.join(map(_text, value))}]"
    return f"{kind.__name__}<{pickle.dumps(value, protocol=5).hex()}>"
