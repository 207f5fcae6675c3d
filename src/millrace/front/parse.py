"""Parse a query with sqlglot and remember where in the text every part stands.

Millrace never prints a query from its syntax tree: what it does not take over goes to Spark exactly
as it was written. So the parser notes, for the nodes that the front looks at, the characters they
were parsed from, and rewriting is cutting and joining pieces of the original text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from millrace.errors import QueryError

Span = tuple[int, int]

_SPANNED = (
    "_parse_bitwise",
    "_parse_equality",
    "_parse_disjunction",
    "_parse_expression",
    "_parse_lambda",
    "_parse_table",
    "_parse_join",
    "_parse_from",
    "_parse_where",
    "_parse_select",
    "_parse_cte",
    "_parse_with",
)
_WORDS = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[A-Za-z_]+", re.DOTALL
)
_QUERIES = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE"})
_WRITES = frozenset({"INSERT", "MERGE", "UPDATE", "DELETE"})


class _SpanParser(SparkParser):
    """Spark's parser of sqlglot; after a parse, ``spans`` maps node ids to characters.

    An inner method that returns the same node is overwritten by the outer one, so that a node's
    span is the widest text that became this node (a table with its alias, for example).
    """

    spans: dict[int, tuple[exp.Expr, Span]]


def _noting(name: str) -> Callable[..., Any]:
    inherited: Callable[..., Any] = getattr(SparkParser, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._index
        node = inherited(self, *args, **kwargs)
        if isinstance(node, exp.Expr) and first < self._index:
            span = (self._tokens[first].start, self._tokens[self._index - 1].end + 1)
            # The node is kept too: an id is only unique among living objects.
            self.spans[id(node)] = (node, span)
        return node

    return method


for _name in _SPANNED:
    setattr(_SpanParser, _name, _noting(_name))


def _parser(functions: Collection[str]) -> type[_SpanParser]:
    """Return the parser for which these lower-case names are functions like any others.

    sqlglot reads many names of other systems' functions as syntax of their own.
    """
    own = {name.upper() for name in functions}
    known = ("FUNCTIONS", "FUNCTION_PARSERS", "NO_PAREN_FUNCTION_PARSERS")
    if not any(own & getattr(_SpanParser, table).keys() for table in known):
        return _SpanParser
    tables = {
        table: {name: read for name, read in getattr(_SpanParser, table).items() if name not in own}
        for table in known
    }
    return type("_NamedParser", (_SpanParser,), tables)


@dataclass(frozen=True)
class Statement:
    """A parsed query.

    Attributes:
        text: The query as the user wrote it.
        root: The syntax tree, or None when only Spark can read the query.
        why: Why there is no tree.
    """

    text: str
    root: exp.Query | None
    why: str = ""
    _spans: dict[int, tuple[exp.Expr, Span]] = field(default_factory=dict, repr=False)

    def span(self, node: exp.Expr) -> Span:
        """Return the characters ``[start, end)`` that became the node; KeyError when unknown."""
        return self._spans[id(node)][1]

    def has_span(self, node: exp.Expr) -> bool:
        """Tell whether the node was noted (nodes that the parser invents are not in the text)."""
        return id(node) in self._spans


def parse(text: str, functions: Collection[str] = ()) -> Statement:
    """Parse a query.

    Args:
        text: The query.
        functions: Lower-case names of the caller's functions.

    Raises:
        QueryError: The text is not one SELECT (set operations and WITH are fine).
    """
    if not text.strip():
        raise QueryError("the query is empty: expected a SELECT")
    _check_kind(text)
    dialect = Dialect.get_or_raise("spark")
    try:
        tokens = dialect.tokenize(text)
        if any(token.token_type is TokenType.PIPE_GT for token in tokens):
            return Statement(text, None, "pipe syntax (|>) is left to Spark")
        parser = _parser(functions)(dialect=dialect)
        parser.spans = {}
        trees = [tree for tree in parser.parse(tokens, text) if tree is not None]
    except (SqlglotError, RecursionError) as error:
        first = str(error).split("\n", 1)[0] or type(error).__name__
        return Statement(text, None, f"sqlglot cannot read the query ({first})")
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return Statement(text, None, "not a form of query that Millrace looks into")
    return Statement(text, trees[0], "", parser.spans)


def _check_kind(text: str) -> None:
    """Refuse everything that is not a query before Spark could run it."""
    words = [w.upper() for w in _WORDS.findall(text) if w[0].isalpha() or w[0] == "_"]
    first = words[0] if words else ""
    if first not in _QUERIES:
        shown = first or text.strip()[:20]
        raise QueryError(f"the query begins with {shown!r}: expected a SELECT, WITH or VALUES query")
    if first in ("WITH", "FROM", "MAP", "REDUCE") and _writes(text):
        raise QueryError("the query writes to a table: expected one that only reads (SELECT)")


def _writes(text: str) -> bool:
    """Tell whether a statement that begins like a query goes on as an INSERT, MERGE, …"""
    try:
        tokens = Dialect.get_or_raise("spark").tokenize(text)
    except SqlglotError:
        return any(w.upper() in _WRITES for w in _WORDS.findall(text))
    depth = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.token_type is TokenType.L_PAREN:
            depth += 1
        elif token.token_type is TokenType.R_PAREN:
            depth -= 1
        elif depth == 0 and token.text.upper() in _WRITES and token.token_type is not TokenType.IDENTIFIER:
            # A column may be called ``update``; after the CTEs or the FROM the keyword starts a clause.
            starts = before is not None and before.token_type in (TokenType.R_PAREN, TokenType.VAR)
            if starts or token.text.upper() in ("INSERT", "MERGE"):
                return True
    return False
