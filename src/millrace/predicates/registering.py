"""What the coordinator is told of a predicate: to it that is a lookup of one column, the truth."""

from __future__ import annotations

from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.predicates.spec import PredicateSpec


def registration_of(spec: PredicateSpec) -> Registration:
    """Return the registration of a predicate, with the place where its answers are kept, if it has one.

    To be called where the query is planned; see :meth:`millrace.predicates.PredicateSpec.fingerprint`.
    """
    kept = spec.answers is not None
    return Registration(
        spec.name,
        spec.max_in_flight,
        spec.per_second,
        cache=spec.answers,
        fingerprint=spec.fingerprint() if kept else "",
        secrets=Secrets.of_environment(spec.secrets, f"predicate {spec.name!r}").values(),
        budget=spec.budget[0],
        tokens_per_minute=spec.tokens_per_minute,
        group=spec.limit_group,
    )
