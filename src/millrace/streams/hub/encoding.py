"""Predicates and schemas as JSON: they lie in files and in checkpoints, where no pickle should.

Constants are written as Arrow writes them, so that they come back with their types to the bit.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Predicate,
    Truth,
    show,
)
from millrace.errors import InputError


def encoded(node: Predicate | Operand) -> list[Any]:
    """Return a predicate as JSON.

    Raises:
        InputError: It calls a function, or looks for matches.
    """
    match node:
        case Column(ref):
            return ["column", ref.relation, ref.column]
        case Literal(value, kind):
            return ["literal", _values([value], kind)]
        case Compare(op, left, right, kind):
            return ["compare", op, encoded(left), encoded(right), _values([], kind)]
        case InList(operand, values, kind):
            return ["in", encoded(operand), _values(values, kind)]
        case Like(operand, pattern):
            return ["like", encoded(operand), pattern]
        case IsNull(operand):
            return ["null", encoded(operand)]
        case Truth(operand):
            return ["truth", encoded(operand)]
        case Not(argument):
            return ["not", encoded(argument)]
        case And(arguments):
            return ["and", *map(encoded, arguments)]
        case Or(arguments):
            return ["or", *map(encoded, arguments)]
    raise InputError(f"a standing query cannot have the condition {show(node)}: expected comparisons")


def decoded(node: Any) -> Predicate:
    """Return what :func:`encoded` was given."""
    match node:
        case ["compare", op, left, right, kind]:
            return Compare(op, _operand(left), _operand(right), _read(kind).type)
        case ["in", operand, values]:
            constants = _read(values)
            return InList(_column(operand), tuple(constants.to_pylist()), constants.type)
        case ["like", operand, pattern]:
            return Like(_column(operand), pattern)
        case ["null", operand]:
            return IsNull(_column(operand))
        case ["truth", operand]:
            return Truth(_column(operand))
        case ["not", argument]:
            return Not(decoded(argument))
        case ["and", *arguments]:
            return And(tuple(map(decoded, arguments)))
        case ["or", *arguments]:
            return Or(tuple(map(decoded, arguments)))
    raise InputError(f"{node!r} is no condition of a standing query")


def encoded_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def decoded_schema(text: str) -> pa.Schema:
    """Return what :func:`encoded_schema` was given."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _operand(node: Any) -> Operand:
    if node[0] == "literal":
        constant = _read(node[1])
        return Literal(constant[0].as_py(), constant.type)
    return _column(node)


def _column(node: Any) -> Column:
    _, relation, column = node
    return Column(ColumnRef(relation, column))


def _values(values: Sequence[Any], kind: pa.DataType) -> str:
    batch = pa.record_batch([pa.array(values, kind)], names=["v"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _read(text: str) -> pa.Array:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))) as reader:
        return reader.read_next_batch().column(0)
