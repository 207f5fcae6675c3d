"""Where the answers of predicates outlive the job: as those of a lookup with one column, the truth."""

from __future__ import annotations

from dataclasses import replace

from millrace.coordination import Registration
from millrace.predicates.spec import PredicateSpec


def keeping(registration: Registration, spec: PredicateSpec) -> Registration:
    """Return a registration with the place where a predicate's answers are kept, if it has one.

    To be called where the query is planned; see :meth:`millrace.predicates.PredicateSpec.fingerprint`.
    """
    if spec.answers is None:
        return registration
    return replace(registration, cache=spec.answers, fingerprint=spec.fingerprint())
