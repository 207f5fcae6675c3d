"""A tiny block that is run to its first batch, in a module that loads nothing a task does not load."""

from __future__ import annotations


def first_batch(kind: str) -> None:
    """Run a tiny block, a filter or a join, to its first batch."""
    import pyarrow as pa

    from millrace.engine.expressions import Column, ColumnRef, Compare, Literal
    from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
    from millrace.engine.spill.run_of import run_of
    from millrace.options import Options

    batch = pa.RecordBatch.from_pydict({"k": list(range(1000))}, pa.schema([("k", pa.int64())]))
    left, right = (ColumnRef(alias, "k") for alias in "ab")
    relations = tuple(RelationSpec(key.relation, batch.schema, rows=1000) for key in (left, right))
    output = (OutputColumn("k", left),)
    if kind == "join":
        spec = JoinSpec(relations, (Equality(left, right, pa.int64()),), (), output)
    else:
        small = Compare("<", Column(left), Literal(5, pa.int64()), pa.int64())
        spec = JoinSpec(relations[:1], (), (small,), output)
    found = next(run_of(spec, {alias: iter([batch]) for alias in spec.aliases}, Options()).run())
    assert found.num_rows == (1000 if kind == "join" else 5)
