"""The join graph with what went along its edges, drawn in layers around the largest relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.engine.figures import JoinFigures
from millrace.reports.planned import BlockShape
from millrace.reports.text import count, short

_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 46, 132, 30, 8
_LETTER, _PADDING, _LONGEST = 7.6, 26, 22


@dataclass(frozen=True)
class Node:
    """A relation: its box, its name, and the tuples that came of it."""

    x: float
    y: float
    width: float
    name: str
    text: str


@dataclass(frozen=True)
class Link:
    """An equality: its line, how strong that is, and the tuples that went along it."""

    x1: float
    y1: float
    x2: float
    y2: float
    weight: float
    text: str


@dataclass(frozen=True)
class Graph:
    """A picture of a block.

    Attributes:
        width: In units of its own, which are letters' pixels.
        height: The same.
        rows: The links as a table: between what, condition, tuples in, tuples out.
        about: What it shows, in words.
        box: Height of a node.
    """

    width: float
    height: float
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    rows: tuple[tuple[str, str, str, str], ...]
    about: str
    box: int = _HEIGHT


def graph(shape: BlockShape, scanned: dict[str, int], joins: Sequence[JoinFigures]) -> Graph | None:
    """Return the picture of a block; None for fewer than two relations.

    ``scanned`` are the tuples that arrived, by alias; ``joins`` what tuples found, by span and join.
    """
    if len(shape.relations) < 2:
        return None
    layers = _layers(shape, scanned)
    boxes = _boxes(layers)
    edges: dict[tuple[str, str], list[str]] = {}  # two relations are joined once, by however many columns
    for left, right, condition in shape.joins:
        pair = (right, left) if (right, left) in edges else (left, right)
        edges.setdefault(pair, []).append(condition)
    flows = [_flow(pair, conditions, shape, joins) for pair, conditions in edges.items()]
    most = max((out for _, out in flows), default=0)
    links = []
    for (left, right), (into, out) in zip(edges, flows, strict=True):
        ends = [(x + width / 2, y + _HEIGHT / 2) for x, y, width in (boxes[left], boxes[right])]
        text = f"{short(into)} → {short(out)}" if into else ""
        links.append(Link(*ends[0], *ends[1], 1.5 + 4.5 * (out / most) ** 0.5 if most else 1.5, text))
    nodes = tuple(
        Node(x, y, width, _cut(alias), f"{short(scanned[alias])} tuples" if alias in scanned else "")
        for alias, (x, y, width) in boxes.items()
    )
    rows = tuple(
        (" ⋈ ".join(one.span), one.name, count(one.tuples_in), count(one.tuples_out)) for one in joins[:40]
    )
    about = f"Join graph of {len(shape.relations)} relations: " + "; ".join(
        f"{' AND '.join(conditions)}, {count(into)} tuples in, {count(out)} out"
        for conditions, (into, out) in zip(edges.values(), flows, strict=True)
    )
    width = max(x + w for x, _, w in boxes.values()) + _MARGIN
    height = max(y for _, y, _ in boxes.values()) + _HEIGHT + _MARGIN
    return Graph(width, height, nodes, tuple(links), rows, about)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _layers(shape: BlockShape, scanned: dict[str, int]) -> list[list[str]]:
    """Return the relations by their distance from the largest; what nothing joins comes last."""
    near: dict[str, list[str]] = {alias: [] for alias in shape.relations}
    for left, right, _ in shape.joins:
        near[left].append(right)
        near[right].append(left)
    seen: set[str] = set()
    layers: list[list[str]] = []
    for start in sorted(shape.relations, key=lambda alias: -scanned.get(alias, 0)):
        layer, depth = [] if start in seen else [start], 0
        while layer:
            seen.update(layer)
            layers += [[]] * (depth + 1 - len(layers))
            layers[depth] = [*layers[depth], *layer]
            layer = list(dict.fromkeys(n for alias in layer for n in near[alias] if n not in seen))
            depth += 1
    return layers


def _boxes(layers: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Return each relation's left, top and width."""
    highest = max(map(len, layers))
    boxes = {}
    left = float(_MARGIN)
    for layer in layers:
        width = max(_PADDING + _LETTER * max(11, len(_cut(alias))) for alias in layer)
        top = _MARGIN + (highest - len(layer)) * (_HEIGHT + _GAP_Y) / 2
        for place, alias in enumerate(layer):
            boxes[alias] = left, top + place * (_HEIGHT + _GAP_Y), width
        left += width + _GAP_X
    return boxes


def _flow(
    pair: tuple[str, str], conditions: Sequence[str], shape: BlockShape, joins: Sequence[JoinFigures]
) -> tuple[int, int]:
    """Return the tuples that were sent along an edge, and what came of them."""
    left, right = pair
    known = [
        " = ".join(sides)
        for parts in (each.split(" = ") for each in conditions)
        for sides in (parts, parts[::-1])
    ]
    into = out = 0
    for one in joins:
        probes = (one.name == right and left in one.span) or (one.name == left and right in one.span)
        if probes or (one.name not in shape.relations and any(each in one.name for each in known)):
            into += one.tuples_in
            out += one.tuples_out
    return into, out
