"""A stream that a query reads in several roles: its tuples come, are kept and logged once (SteMs, 2.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from millrace.engine.spec import JoinSpec
from millrace.spark.block import Block
from millrace.spark.hypercube import Cube


def roles(block: Block, streams: Collection[str], cube: Cube) -> Mapping[str, str]:
    """Return which streams are the tuples of an earlier one, under another name: that one's alias by theirs.

    They are where the block has one input for both, and where a tuple goes to the same cells in both roles:
    else it would be in cells for one role, and meet there what it met elsewhere in the other.

    Args:
        block: The block.
        streams: Aliases of its streams.
        cube: How tuples are dealt to cells.
    """
    found: dict[str, str] = {}
    numbers = {alias: number for number, alias in enumerate(block.join.aliases) if alias in streams}
    for alias, number in numbers.items():
        for lead, other in numbers.items():
            if other == number:
                break
            alike = all(axis.column(number) == axis.column(other) for axis in cube.axes)
            if alike and lead not in found and block.inputs[lead] is block.inputs[alias]:
                found[alias] = lead
                break
    return found


def in_roles(join: JoinSpec, found: Mapping[str, str]) -> JoinSpec:
    """Return a join whose relations share tuples as :func:`roles` says."""
    relations = (replace(each, same_as=found.get(each.alias)) for each in join.relations)
    return replace(join, relations=tuple(relations))
