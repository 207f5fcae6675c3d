"""Shrinks a failing query: first over sqlglot's tree, then over its words.

Both ways only propose; a proposal counts when the query that it makes fails as before. Most are
no queries at all, which Spark tells at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

Fails = Callable[[str], bool]
_WORDS = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`|/\*.*?\*/|--[^\n]*\n|\|>|[\w.]+|<=>|\S""",
    re.DOTALL,
)
_PARTS = (
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "qualify",
    "windows",
    "distinct",
    "hint",
    "with_",
)
_OPERANDS = (
    exp.Binary,
    exp.Func,
    exp.Paren,
    exp.Alias,
    exp.Not,
    exp.Case,
    exp.Cast,
    exp.Neg,
    exp.Filter,
    exp.Window,
)


def minimise(text: str, fails: Fails, budget: int = 400) -> str:
    """Return a short query that fails as this one does.

    Args:
        text: A query that fails.
        fails: Whether a query fails in the same way.
        budget: How many proposals are tried, at most.
    """
    tried = _Tried(fails, budget)
    text = _by_tree(text, tried)
    return _by_words(text, tried)


class _Tried:
    """Asks no question twice, and not too many."""

    def __init__(self, fails: Fails, budget: int) -> None:
        self._fails = fails
        self._seen: set[str] = set()
        self.left = budget

    def __call__(self, text: str) -> bool:
        if text in self._seen or self.left <= 0:
            return False
        self._seen.add(text)
        self.left -= 1
        return self._fails(text)


def _by_tree(text: str, tried: _Tried) -> str:
    try:
        tree = parse_one(text, read="spark")
        rendered = tree.sql("spark")
    except (SqlglotError, RecursionError):
        return text
    if rendered != text and not tried(rendered):
        return text
    at = 0
    while tried.left > 0:
        smaller, at = _smaller(tree, at, tried)
        if smaller is None:
            return tree.sql("spark")
        tree = smaller
    return tree.sql("spark")


def _smaller(tree: exp.Expr, start: int, tried: _Tried) -> tuple[exp.Expr | None, int]:
    """Return a smaller tree that fails, looking from the place of the last success on, and its place."""
    count = sum(1 for _ in _changes(tree))
    for n in [*range(start, count), *range(min(start, count))]:
        copy = tree.copy()
        change = next(each for m, each in enumerate(_changes(copy)) if m == n)
        copy = change() or copy
        text = copy.sql("spark")
        if len(text) < len(tree.sql("spark")) and tried(text):
            return copy, n
    return None, 0


def _changes(tree: exp.Expr) -> Iterator[Callable[[], exp.Expr | None]]:
    """Give every single change to a tree, larger pieces first."""
    for node in tree.walk(bfs=True):
        if isinstance(node, exp.Query):
            yield from _query_changes(node, tree)
        elif isinstance(node, exp.CTE | exp.Join | exp.Lateral):
            yield _dropped(node)
        elif isinstance(node, exp.Table):
            yield from (_dropped(each) for each in _pieces(node))
        if isinstance(node, _OPERANDS):
            for child in node.iter_expressions():
                if not isinstance(child, exp.DataType | exp.Identifier | exp.WindowSpec):
                    yield _replaced(node, child)


def _query_changes(node: exp.Query, tree: exp.Expr) -> Iterator[Callable[[], exp.Expr | None]]:
    if node is not tree:
        yield lambda: node.copy()
    if isinstance(node, exp.SetOperation):
        yield _replaced(node, node.this)
        yield _replaced(node, node.expression)
    for name in _PARTS:
        if node.args.get(name):
            yield _unset(node, name)
    if isinstance(node, exp.Select):
        if len(node.expressions) > 1:
            yield from (_dropped(item) for item in node.expressions)
        group = node.args.get("group")
        if group is not None:
            yield from (_dropped(key) for key in group.expressions)
        order = node.args.get("order")
        if order is not None:
            yield from (_dropped(key) for key in order.expressions)


def _pieces(table: exp.Table) -> list[exp.Expr]:
    return [
        each
        for each in (*(table.args.get("pivots") or []), table.args.get("sample"), table.args.get("alias"))
        if each
    ]


def _dropped(node: exp.Expr) -> Callable[[], None]:
    def change() -> None:
        node.pop()

    return change


def _unset(node: exp.Expr, name: str) -> Callable[[], None]:
    def change() -> None:
        node.set(name, None)

    return change


def _replaced(node: exp.Expr, child: exp.Expr) -> Callable[[], exp.Expr | None]:
    def change() -> exp.Expr | None:
        if node.parent is None:
            return child.copy()
        node.replace(child.copy())
        return None

    return change


def _by_words(text: str, tried: _Tried) -> str:
    """Drop words that stand together, as long as parentheses stay in pairs."""
    words = [word for word in _WORDS.findall(text) if not word.startswith(("--", "/*"))]
    if not tried(" ".join(words)):
        words = _WORDS.findall(text)
        if not tried(" ".join(words)):
            return text
    size = max(len(words) // 2, 1)
    while size >= 1:
        start = 0
        while start < len(words) and tried.left > 0:
            rest = words[:start] + words[start + size :]
            if _balanced(words[start : start + size]) and tried(" ".join(rest)):
                words = rest
            else:
                start += 1
        size = size * 2 // 3
    return _tidy(" ".join(words))


def _balanced(words: list[str]) -> bool:
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0:
            return False
    return depth == 0


def _tidy(text: str) -> str:
    return re.sub(r" ([,)])", r"\1", text.replace("( ", "(").replace(" . ", "."))
