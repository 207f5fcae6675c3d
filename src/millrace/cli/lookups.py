"""``--lookup NAME=FILE.toml``: a lookup table declared in a file.

.. code-block:: toml

    schema = "sku string, price double"
    bind = ["sku"]                       # or [["sku"], ["ean"]], with [[http]] once for each
    on_error = "skip"                    # these five as in millrace.lookup
    cache = "prices.sqlite"
    ttl = 3600
    scan = "prices.parquet"
    between = ["day"]                    # not beside scan

    [http]                               # or [database]; the settings of millrace.http, millrace.database
    url = "https://api.example/price/{sku}"
    headers = {Authorization = "Bearer ${PRICE_TOKEN}"}
    per_second = 50
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace import database, http, lookup
from millrace.errors import InputError
from millrace.limits.policy import LookupOptions, check_options, settings_of

if TYPE_CHECKING:
    from millrace.lookups.source import Source
    from millrace.lookups.table import LookupTable

_KINDS: dict[str, Callable[..., Source]] = {"http": http, "database": database}
_NEEDED = ("schema", "bind")
_SETTINGS = (*_NEEDED, "on_error", "cache", "ttl", "scan", "between")


def lookup_from(name: str, path: str) -> LookupTable:
    """Return the lookup table that a file declares.

    Raises:
        InputError: The file cannot be read, or declares no lookup table.
        OptionError: A setting is unknown or out of range.
    """
    where = f"--lookup {name}={path}"
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}: expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where} is no TOML file: {error}") from None
    check_options(where, given, (*_SETTINGS, *_KINDS))
    for setting in _NEEDED:
        if setting not in given:
            raise InputError(f"{where} has no {setting}: expected for example {_EXAMPLES[setting]}")
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise InputError(
            f"{where} has {' and '.join(f'[{kind}]' for kind in kinds) or 'no source'}: expected one of "
            "[http] and [database]"
        )
    settings = {setting: given[setting] for setting in _SETTINGS if setting in given}
    return lookup(name, via=_sources(where, kinds[0], given[kinds[0]]), **settings)


_EXAMPLES = {"schema": 'schema = "sku string, price double"', "bind": 'bind = ["sku"]'}


def _sources(where: str, kind: str, given: Any) -> Source | list[Source]:
    if isinstance(given, list):
        return [_source(where, kind, each) for each in given]
    return _source(where, kind, given)


def _source(where: str, kind: str, given: Any) -> Source:
    if not isinstance(given, dict):
        raise InputError(f"{where}: {kind} is {given!r}: expected a section [{kind}] with its settings")
    check_options(f"{where}: [{kind}]", given, settings_of(_KINDS[kind], LookupOptions))
    for name, parameter in inspect.signature(_KINDS[kind]).parameters.items():
        if name != "limits" and parameter.default is inspect.Parameter.empty and name not in given:
            raise InputError(f"{where}: [{kind}] has no {name}")
    return _KINDS[kind](**given)
