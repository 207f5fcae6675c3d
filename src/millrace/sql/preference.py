"""What the reader of a block's rows wants first: conditions in SQL over columns of its relations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from pyspark.sql import SparkSession
from sqlglot import exp

from millrace.engine.eddy.preference import Preference
from millrace.engine.plan.expressions import Predicate
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError, QueryError, near
from millrace.options import Options
from millrace.spark.types import spark_schema
from millrace.sql.context import PlanContext
from millrace.sql.expr.translate import Translator
from millrace.sql.expr.types import AliasedField, field_of
from millrace.sql.session.asking import Frames, Settings
from millrace.sql.session.tables import Catalog
from millrace.sql.syntax.edits import EditedText
from millrace.sql.syntax.parse import parse, unwrap

_FORM = (
    "expected a condition over columns of one relation, such as \"o.region = 'EU'\": comparisons with "
    "constants, BETWEEN, IN, LIKE and IS NULL, with AND, OR and NOT"
)


def read_preference(
    conditions: Sequence[str], join: JoinSpec, spark: SparkSession, options: Options
) -> tuple[Predicate, ...]:
    """Return conditions as predicates of a block, in the same order.

    Raises:
        InputError: One names no column that the block reads, or more than one relation.
        QueryError: One is no condition that tasks evaluate.
    """
    with closing(Frames(spark)) as frames:
        catalog = Catalog(frames, {}, Settings(spark, options))
        predicates = tuple(_read(condition, join, catalog) for condition in conditions)
    Preference(join).change(predicates)  # raises for what the engine cannot prefer by
    return predicates


def _read(condition: str, join: JoinSpec, catalog: Catalog) -> Predicate:
    statement = parse(f"SELECT 1 WHERE (\n{condition}\n)")
    where = None if statement.root is None else statement.root.args.get("where")
    others = {name for name, part in statement.root.args.items() if part} if statement.root else set()
    if where is None or not isinstance(where.this, exp.Paren) or others != {"expressions", "where"}:
        raise QueryError(f"the preference {condition!r} cannot be read: {_FORM}")
    context = PlanContext(statement, EditedText(statement.text), catalog, {}, 0, aggregates=False)
    predicate = Translator(context, lambda column: _find(column, condition, join)).predicate(
        unwrap(where.this)
    )
    if predicate is None:
        raise QueryError(f"tasks cannot evaluate the preference {condition!r}: {_FORM}")
    return predicate


def _find(column: exp.Column, condition: str, join: JoinSpec) -> AliasedField:
    """Return the column that a name means, in any case; InputError if it means none, or several."""
    *qualifier, name = (part.name.lower() for part in column.parts)
    known = {relation.alias.lower(): relation for relation in join.relations}
    if qualifier and (len(qualifier) > 1 or qualifier[0] not in known):
        shown = ".".join(qualifier)
        aliases = [relation.alias for relation in join.relations]
        raise InputError(
            f"the preference {condition!r} names relation {shown!r}, which is none of those that the "
            f"query joins: {near(shown, aliases)}"
        )
    relations = [known[qualifier[0]]] if qualifier else join.relations
    found = [(r.alias, field) for r in relations for field in r.schema if field.name.lower() == name]
    if len(found) != 1:
        names = [f"{r.alias}.{field.name}" for r in relations for field in r.schema]
        why = f"is in several relations; write which ({near(name, names)})"
        if not found:
            why = f"is no column that the query reads: {near('.'.join([*qualifier, name]), names)}"
            why += " Let the query select it, if the table has it"
        raise InputError(f"column {name!r} of the preference {condition!r} {why}")
    ((alias, field),) = found
    return alias, field_of(spark_schema(join.relation(alias).schema)[field.name])
