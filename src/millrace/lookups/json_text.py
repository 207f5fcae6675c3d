"""JSON text as Python values, with the numbers as they were written.

A fraction becomes a float that remembers its text, so that a decimal column gets exactly the digits that were
sent, while JSON paths compare it like any other number.
"""

from __future__ import annotations

import json
from typing import Any, Self

import pyarrow as pa


class Fraction(float):
    """A number of a JSON text that is not whole; ``text`` is as it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


class Named(float):
    """NaN, Infinity or -Infinity, which JSON does not have but many write."""

    __slots__ = ()


def parse(text: bytes, *, exact: bool) -> Any:
    """Return the value of a JSON text; with ``exact``, fractions are :class:`Fraction`, else floats, faster.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_float=Fraction if exact else None, parse_constant=Named)


def has_decimals(kind: pa.DataType) -> bool:
    """Tell whether values of a type have decimals in them, which want :class:`Fraction`."""
    return pa.types.is_decimal(kind) or any(has_decimals(kind.field(i).type) for i in range(kind.num_fields))


def is_overflow(number: float) -> bool:
    """Whether a number of a JSON text is infinite only because no float is that large."""
    return number in (float("inf"), float("-inf")) and not isinstance(number, Named)
