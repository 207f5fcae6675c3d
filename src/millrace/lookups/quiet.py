"""Silence of the HTTP library's logs about our requests: it logs URLs and headers as they are sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ours: ContextVar[bool] = ContextVar("millrace_lookup", default=False)

_LOGGERS = (
    "httpx",
    *(f"aiohttp.{part}" for part in ("client", "internal")),
)


def _is_others(_: logging.LogRecord) -> bool:
    return not _ours.get()


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what happens within out of the library's logs; the user's own requests stay in them."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_is_others)
