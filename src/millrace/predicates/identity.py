"""What a user's function does, as a text that changes when it does: rows in a cache are known by it.

It is made of the function's code, of what it has captured, and of what its code names: helpers of the same
package, with what they name in turn, and values of its module. Functions of other packages are known by their
names. An object that cannot be pickled, such as a connection, is known by its type.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import uuid4


def identity_of(fn: Callable[..., Any], name: str) -> str:
    """Return a text that changes with what a function does.

    What cannot be told apart in this way makes a text that no other process has.
    """
    called = fn
    while isinstance(called, partial):
        called = called.func
    module = getattr(called, "__module__", "") or ""
    digest = blake2b(digest_size=16)
    try:
        for part in _parts(fn, module.partition(".")[0], set()):
            digest.update(len(part).to_bytes(8) + part)
    except Exception:  # noqa: BLE001  # objects raise what they like when they are pickled
        digest.update(uuid4().bytes)
    return f"function {module}.{name} {digest.hexdigest()}"


def _parts(fn: Callable[..., Any], package: str, seen: set[int]) -> Iterator[bytes]:
    """Yield what a function, or an object that is called like one, is made of."""
    if isinstance(fn, partial | MethodType) or _find_wrapped(fn) is not None:
        yield from _value(fn, package, seen, captured=True)
        return
    if not isinstance(fn, FunctionType):
        yield pickle.dumps(fn, protocol=5)
        own = type(fn).__call__
        if isinstance(own, FunctionType):
            yield from _function(own, package, seen)
        return
    yield from _function(fn, package, seen)


def _function(fn: FunctionType, package: str, seen: set[int]) -> Iterator[bytes]:
    if id(fn) in seen:
        return
    seen.add(id(fn))
    yield repr(_code(fn.__code__)).encode()
    captured = [*(cell.cell_contents for cell in fn.__closure__ or ()), *(fn.__defaults__ or ())]
    for value in (*captured, *(fn.__kwdefaults__ or {}).values()):
        yield from _value(value, package, seen, captured=True)
    for name in sorted(_names(fn.__code__)):
        if name in fn.__globals__:
            yield name.encode()
            yield from _value(fn.__globals__[name], package, seen, captured=False)


def _value(value: object, package: str, seen: set[int], *, captured: bool) -> Iterator[bytes]:
    """Yield what a value is that a function's code names, or that it has captured."""
    named = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    mine = named.partition(".")[0] == package
    if isinstance(value, ModuleType):
        yield f"{value.__name__} {getattr(value, '__version__', '')}".encode()
    elif isinstance(value, FunctionType):
        yield named.encode()
        if mine or captured:
            yield from _function(value, package, seen)
    elif isinstance(value, type):
        yield named.encode()
        if mine and id(value) not in seen:
            seen.add(id(value))
            for method in (each for each in vars(value).values() if isinstance(each, FunctionType)):
                yield from _function(method, package, seen)
    elif isinstance(value, partial):  # pickle knows these by the name of what they call, not by what it does
        for each in (value.func, *value.args, *value.keywords, *value.keywords.values()):
            yield from _value(each, package, seen, captured=captured)
    elif isinstance(value, MethodType):
        for each in (value.__func__, type(value.__self__), value.__self__):
            yield from _value(each, package, seen, captured=captured)
    elif (inner := _find_wrapped(value)) is not None:
        yield from _value(inner, package, seen, captured=captured)
    else:
        try:
            yield _pickled(value)
        except Exception:
            if captured:
                raise
            yield f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _find_wrapped(value: object) -> object | None:
    """Return what functools.cache has wrapped, None of anything else."""
    return None if isinstance(value, FunctionType) else getattr(value, "__dict__", {}).get("__wrapped__")


def _pickled(value: Any) -> bytes:
    """Return a value as bytes that are the same in each process: sets have an order of their own in each."""
    try:
        return _ordered(value)
    except RecursionError:  # it holds itself; pickle ends, and only sets within it may differ by process
        return pickle.dumps(value, protocol=5)


def _ordered(value: Any) -> bytes:
    if isinstance(value, set | frozenset):
        return pickle.dumps((type(value).__qualname__, sorted(map(_ordered, value))), protocol=5)
    if type(value) in (list, tuple, dict) and _has_set(value):
        parts = value.items() if isinstance(value, dict) else value
        return pickle.dumps((type(value).__qualname__, list(map(_ordered, parts))), protocol=5)
    return pickle.dumps(value, protocol=5)


def _has_set(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_has_set, value.items()))
    return isinstance(value, set | frozenset) or (type(value) in (list, tuple) and any(map(_has_set, value)))


def _names(code: CodeType) -> set[str]:
    """Return the names in a function's code and in the functions within it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _code(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, without where its text stands."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)  # sets have no order
