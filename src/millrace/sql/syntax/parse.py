"""Parse a query with sqlglot and remember where in the text every part stands.

Millrace never prints a query from its syntax tree: what it does not take over goes to Spark exactly
as it was written. So the parser notes, for the nodes that planning looks at, the characters they
were parsed from, and rewriting is cutting and joining pieces of the original text.

Two kinds of names stand for something that Spark does not know: the caller's functions, and parameters. They
are found among the tokens, before sqlglot reads a function's name as syntax of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from millrace.errors import QueryError, first_line, near
from millrace.sql.syntax.edits import Edit, EditedText, Span, unescape

_SPANNED = (
    "unary", "bitwise", "equality", "disjunction", "expression", "lambda", "lateral", "table", "join", "from",
    "where", "select", "cte", "with",
)  # fmt: skip
_QUERIES = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE"})
_CALL = "__millrace_call_"
PARAMETER = "__millrace_arg_"
"""Begins the names that parameters without a name get."""
NO_QUERY = "the text is no query: expected one that only reads (SELECT)"
# A comment goes on behind a backslash at the end of its line, to Spark alone.
_LONG_COMMENT = re.compile(r"--[^\n]*\\\r?\n")


class Unsupported(Exception):
    """Something stays with Spark; the message says why. Never leaves this package."""


class _SpanParser(SparkParser):
    """Spark's parser of sqlglot; after a parse, ``spans`` maps node ids to characters.

    An inner method that returns the same node is overwritten by the outer one, so that a node's
    span is the widest text that became this node (a table with its alias, for example).
    """

    spans: dict[int, tuple[exp.Expr, Span]]


def _note(name: str) -> Callable[..., Any]:
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
    setattr(_SpanParser, f"_parse_{_name}", _note(f"_parse_{_name}"))


@dataclass(frozen=True)
class Statement:
    """A parsed query.

    Attributes:
        functions: Where the caller's functions are called: the name's characters, and which function it is.
        names: Characters of unquoted words and quoted names that are no syntax, with the name in lower case.
    """

    text: str
    root: exp.Query | None  # the syntax tree, None when only Spark can read the query
    why: str = ""  # why there is no tree
    functions: tuple[tuple[Span, str], ...] = ()
    parameters: tuple[Span, ...] = ()  # where ``?`` stands, in order
    names: tuple[tuple[Span, str], ...] = ()
    _spans: dict[int, tuple[exp.Expr, Span]] = field(default_factory=dict, repr=False)

    def span(self, node: exp.Expr, what: str = "an expression") -> Span:
        """Return the characters that became the node, which is ``what``; Unsupported if it was not noted."""
        if not self.has_span(node):
            raise Unsupported(f"{what} in a form that Millrace does not read")
        return self._spans[id(node)][1]

    def copy(self, span: Span) -> str:
        """Return a piece for another query's text: ``?`` counts within a text, and gets a name there."""
        marks = [Edit(*mark, (f":{PARAMETER}{number}",)) for number, mark in enumerate(self.parameters)]
        return unescape(EditedText(self.text).with_edits(span, marks))

    def shown(self, node: exp.Expr) -> str:
        """Return a node's text on one line; raises as :meth:`span` does."""
        return " ".join(self.text[slice(*self.span(node))].split())

    def has_span(self, node: exp.Expr) -> bool:
        """Tell whether the node was noted (nodes that the parser invents are not in the text)."""
        return id(node) in self._spans


def name_span(named: exp.Column | exp.Table, last: int = -1) -> Span:
    """Return the characters of a name, or of its parts up to one; Unsupported where it is not in the text."""
    start, end = named.parts[0].meta.get("start"), named.parts[last].meta.get("end")
    if start is None or end is None:
        raise Unsupported("a name in a form that Millrace does not read")
    return start, end + 1


def unwrap(node: exp.Expr) -> exp.Expr:
    """Return what stands inside parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Return the terms of an AND, at any depth of parentheses."""
    return _terms(node, exp.And)


def disjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Return the terms of an OR, at any depth of parentheses."""
    return _terms(node, exp.Or)


def _terms(node: exp.Expr, kind: type[exp.And | exp.Or]) -> Iterator[exp.Expr]:
    left = [node]  # no recursion: a condition may have thousands of terms
    while left:
        node = left.pop()
        inner = unwrap(node)
        if isinstance(inner, kind):
            left += inner.expression, inner.this
        else:
            yield node


def where_conjuncts(select: exp.Select) -> list[exp.Expr]:
    """Return the terms of a SELECT's WHERE."""
    where = select.args.get("where")
    return [] if where is None else list(conjuncts(where.this))


def compared(node: exp.In) -> list[exp.Expr]:
    """Return what stands left of IN: the parts of a tuple, or one expression."""
    left = unwrap(node.this)
    return list(left.expressions) if isinstance(left, exp.Tuple) else [left]


def function_of(node: exp.Expr) -> str | None:
    """Return which of the caller's functions a node calls, None if it calls none."""
    if not isinstance(node, exp.Anonymous) or not node.name.startswith(_CALL):
        return None
    return node.name.removeprefix(_CALL)


def parse(text: str, functions: Collection[str] = ()) -> Statement:
    """Parse a query; ``functions`` are the lower-case names of the caller's.

    Raises:
        QueryError: The text is not one SELECT (set operations and WITH are fine).
    """
    if not isinstance(text, str):
        raise QueryError(
            f"the query is given as {type(text).__name__}: expected its text, such as 'SELECT …'"
        )
    if not text.strip():
        raise QueryError("the query is empty: expected a SELECT")
    dialect = Dialect.get_or_raise("spark")
    try:
        tokens = list(dialect.tokenize(text))
    except Exception as error:  # noqa: BLE001  # whatever its reader stumbles over
        return Statement(text, None, _why_unread(error))  # Spark has other rules, and then says what it is
    _check_words([token.text.upper() for token in tokens if token.token_type is not TokenType.L_PAREN])
    while len(tokens) > 1 and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
        text = text[: tokens[-1].end + 1]  # a comment behind it ends with it
    for token, following in pairwise(tokens):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR  # the function; sqlglot ends GROUP BY at the word
    called = tuple(_rename_calls(tokens, functions))
    marks = [t for t in tokens if t.token_type is TokenType.PLACEHOLDER and t.text == "?"]
    spans = tuple((t.start, t.end + 1) for t in marks)
    parser = _SpanParser(dialect=dialect)
    parser.spans = {}
    why = _only_spark(text, tokens)
    try:
        trees = [] if why else [tree for tree in parser.parse(tokens, text) if tree is not None]
    except Exception as error:  # noqa: BLE001  # whatever its reader stumbles over
        trees, why = [], _why_unread(error)
    root = trees[0] if len(trees) == 1 else None
    if not isinstance(root, exp.Query):
        if any(isinstance(tree, exp.DML | exp.DDL) for tree in trees):
            raise QueryError(NO_QUERY)
        return Statement(text, None, why or "not a form of query that Millrace looks into", called, spans)
    words = (TokenType.VAR, TokenType.IDENTIFIER, *_BARE)
    names = tuple(((t.start, t.end + 1), t.text.lower()) for t in tokens if t.token_type in words)
    return Statement(text, root, "", called, spans, names, parser.spans)


# Functions that are called without parentheses; a column may have such a name too.
_BARE = (
    TokenType.CURRENT_DATE, TokenType.CURRENT_DATETIME, TokenType.CURRENT_TIME, TokenType.CURRENT_TIMESTAMP,
    TokenType.CURRENT_USER, TokenType.LOCALTIME, TokenType.LOCALTIMESTAMP, TokenType.SESSION_USER,
    TokenType.CURRENT_CATALOG, TokenType.CURRENT_SCHEMA,
)  # fmt: skip


def _why_unread(error: Exception) -> str:
    return f"sqlglot cannot read the query ({first_line(error)})"


def _rename_calls(tokens: list[Token], functions: Collection[str]) -> Iterator[tuple[Span, str]]:
    """Rename the calls of the caller's functions in the tokens; yield where they stand."""
    for place, token in enumerate(tokens[:-1]):
        name = token.text.lower()
        if name not in functions or tokens[place + 1].token_type is not TokenType.L_PAREN:
            continue
        before = tokens[place - 1].token_type if place else None
        if before in _BEFORE_NAMES or token.token_type is TokenType.STRING:
            continue
        if _is_definition(tokens, place + 1):
            continue
        token.token_type = TokenType.VAR
        token.text = _CALL + name
        yield (token.start, token.end + 1), name


def _is_definition(tokens: Sequence[Token], at: int) -> bool:
    """Tell whether a parenthesis has the columns of a common table expression: ``AS (`` follows, or ``(``."""
    depth = 0
    for place in range(at, len(tokens) - 2):
        depth += _DEPTHS.get(tokens[place].token_type, 0)
        if depth == 0:
            behind = [token.token_type for token in tokens[place + 1 : place + 3]]
            return behind == [TokenType.ALIAS, TokenType.L_PAREN] or behind[0] is TokenType.L_PAREN
    return False


# What stands behind these is of a database, or a relation with names for its columns.
_BEFORE_NAMES = (TokenType.DOT, TokenType.ALIAS, TokenType.R_PAREN)
_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def _only_spark(text: str, tokens: list[Token]) -> str | None:
    """Return why only Spark can read a text, None if sqlglot may."""
    if any(token.token_type is TokenType.PIPE_GT for token in tokens):
        return "pipe syntax (|>) is left to Spark"
    if "${" in text:
        return "${…} stands for something that only Spark knows"
    if _LONG_COMMENT.search(text):
        return "a backslash makes a comment go on in the next line"
    if any(token.token_type is TokenType.PARAMETER and token.text == "@" for token in tokens):
        return "@ behind a table names one of its versions"
    for token, behind in pairwise(tokens):
        if token.token_type is TokenType.TABLE and behind.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
            return "TABLE as a query is left to Spark"
        if token.text.lower() == "identifier" and behind.token_type is TokenType.L_PAREN:
            return "identifier(…) stands for a name that only Spark knows"
    return None


def _check_words(words: list[str]) -> None:
    """Refuse everything that is not a query before Spark could run it."""
    first = words[0] if words else ""
    if first not in _QUERIES:
        shown = first[:20] or "nothing but comments"
        close = near(first, ("SELECT", "WITH", "VALUES"))
        hint = f"; {close}" if close.startswith("did you mean") else ""
        raise QueryError(f"the query begins with {shown!r}: expected a SELECT, WITH or VALUES query{hint}")
