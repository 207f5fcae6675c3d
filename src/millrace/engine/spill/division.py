"""Dividing work that does not fit: by another hash of a key while that helps, by rows where it does not.

Joining each part of one relation with all of every other is right however the relation is cut, so
there is always a way: heavy keys, cross products, blocks without any key. The other relations are
read once for each part (a block nested loop). Only a relation with set semantics may not be cut
anyhow, for duplicates have to meet; all of its columns are keys, and equal keys stay together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millrace.engine.spill.chunks import Chunk, total
from millrace.engine.spill.guard import Rest
from millrace.engine.spill.partitions import Partitions, fan_out
from millrace.engine.spill.work import Setting, Work, batches, fitting_batches
from millrace.engine.tuples import keyed

_WORTH = 0.25
"""Dividing by a class has to divide this much of the state, or rows are cut instead."""

_DEEPEST = 24
"""Levels of hashing after which nothing is hoped for from another one."""


def fitting(setting: Setting, works: list[Work]) -> Iterator[Work]:
    """Yield pieces of work that fit the budget and together have the results of ``works``, which is emptied.

    A piece that nothing can divide (a tuple of each relation) comes as it is.
    """
    stack = works[::-1]
    works.clear()  # files go when no work needs them
    while stack:
        work = stack.pop()
        if not work.possible:
            continue
        parts = None if work.fits(setting) else divided(setting, work)
        if parts is None:
            yield work
        else:
            del work  # what has been divided needs its files no more
            stack.extend(reversed(parts))


def divided(setting: Setting, work: Work) -> list[Work] | None:
    """Return parts of work that does not fit, or None if there is no way to divide it."""
    streamed = work.streamed(setting)
    sizes = {r: setting.footprint(r, e) for r, e in work.extents.items() if r != streamed}
    loose = {r: size for r, size in sizes.items() if _can_cut(setting, work, r)}
    gains = {
        attribute: sum(size for r, size in sizes.items() if setting.covers(attribute, r))
        for attribute in range(len(setting.graph.classes))
        if work.level < _DEEPEST
    }
    fresh = {a: gain for a, gain in gains.items() if a not in work.spent}
    best = max(fresh, key=lambda a: (fresh[a], -a), default=None)
    if best is not None and fresh[best] >= _WORTH * sum(sizes.values()):
        return _by_key(setting, work, best)
    largest = max(sizes, key=lambda r: (sizes[r], -r), default=None)
    again = [a for a, gain in gains.items() if gain and setting.covers(a, largest or 0)]
    if loose and (largest in loose or not again):
        return _by_rows(setting, work, max(loose, key=lambda r: (loose[r], -r)), sum(sizes.values()))
    # A relation with set semantics: as duplicates have gone, a class that was spent may divide it again.
    return _by_key(setting, work, again[work.level % len(again)]) if again else None


def remainder(setting: Setting, rest: Rest, work: Work) -> Work:
    """Write what a join has left of a piece of work to files; return it as one that does not fit."""
    inputs = {relation: _stored(setting, relation, rest) for relation in setting.order}
    left = replace(work, inputs=inputs)
    expected = max(1, setting.state(left.extents, left.streamed(setting)))
    return replace(left, scale=2 * max(work.scale, setting.budget.state / expected))


def _stored(setting: Setting, relation: int, rest: Rest) -> list[Chunk]:
    layout = setting.layouts[relation]
    writer = setting.folder.writer(relation, setting.spec.relations[relation].schema)
    chunks = []
    for batch in rest.all(relation):
        for piece in fitting_batches(setting, keyed(batch, layout.keys, layout.same)[0]):
            chunk = setting.chunk(relation, piece)
            chunks.append(replace(chunk, data=writer.write(chunk.data)))
    setting.folder.finish(writer)
    return chunks


def _can_cut(setting: Setting, work: Work, relation: int) -> bool:
    return work.extents[relation].rows > 1 and not setting.spec.relations[relation].distinct


def _by_key(setting: Setting, work: Work, attribute: int) -> list[Work]:
    setting.folder.tally.splits_by_key += 1
    count = fan_out(setting, work.scale * setting.state(work.extents, work.streamed(setting)))
    shared = {r: chunks for r, chunks in work.inputs.items() if not setting.covers(attribute, r)}
    parts = Partitions(setting, attribute, count, work.level, shared=shared)
    for relation, chunks in work.inputs.items():
        if relation not in shared:
            for batch in batches(setting, relation, chunks):
                parts.add(relation, batch)
    parts.finish()
    return parts.works(work)


def _by_rows(setting: Setting, work: Work, relation: int, everything: int) -> list[Work]:
    setting.folder.tally.splits_by_rows += 1
    own = setting.footprint(relation, work.extents[relation])
    limit = work.room(setting)
    # What the others leave; where they leave little they will be cut themselves.
    room = max(limit - (everything - own), limit // 4, 1) / 2
    wanted = max(1, int(work.extents[relation].rows * min(0.5, room / own)))
    groups: list[list[Chunk]] = [[]]
    for chunk in _pieces(work.inputs[relation], wanted):
        if groups[-1] and total(groups[-1]).rows + chunk.extent.rows > wanted:
            groups.append([])
        groups[-1].append(chunk)
    return [replace(work, inputs={**work.inputs, relation: group}) for group in groups]


def _pieces(chunks: list[Chunk], rows: int) -> Iterator[Chunk]:
    """Yield chunks of at most so many rows."""
    stack = chunks[::-1]
    while stack:
        chunk = stack.pop()
        if chunk.extent.rows > max(1, rows):
            stack.extend(reversed(chunk.halves()))
        else:
            yield chunk
