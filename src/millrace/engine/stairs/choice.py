"""The architectures: which kind of join state an eddy works with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millrace.engine.eddy.context import RunContext
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import default_policy
from millrace.engine.stems.join_state import JoinState
from millrace.engine.stems.state import SteMs
from millrace.options import Options


@dataclass(frozen=True)
class Choice:
    """The name of an architecture, one of ``ARCHITECTURES``, and words to stand behind a "because"."""

    name: str
    because: str


def architecture_of(
    spec: JoinSpec, options: Options, *, side_by_side: bool | None = None, looked_up: bool = False
) -> Choice:
    """Return the architecture that the options name, or for ``"auto"`` the one that is expected to be faster.

    SteMs make intermediate tuples again for every tuple that arrives. That costs nothing where all but one
    relation are there before it, and the more the longer relations arrive side by side. STAIRs keep those
    tuples, and move them when routing changes.

    Relations arrive in turn if ``side_by_side``, by default what ``online`` asks for. If ``looked_up``, some
    relation has access methods beside a scan. A static plan, with its order, is one of joins: where there is
    one relation an eddy has the predicates.
    """
    if options.architecture == "static" and len(spec.relations) == 1:
        return Choice("stems", "a static plan is one of joins, and there is one relation")
    if options.architecture != "auto":
        return Choice(options.architecture, "it is asked for")
    if not (options.online if side_by_side is None else side_by_side):
        return Choice("stems", "relations are read one after the other")
    if len(spec.relations) < 3:
        return Choice("stems", "a single join makes no intermediate tuples")
    if looked_up:
        return Choice("stems", "relations are looked up")
    if any(r.same_as or r.window for r in spec.relations):
        return Choice("stems", "relations share their tuples, or let go of them")
    if spec.beside or any(isinstance(p, Call) for p in spec.residuals):
        return Choice("stems", "more than joins decides about tuples")
    return Choice("stairs", "relations arrive side by side")


def settle_architecture(
    spec: JoinSpec, options: Options, *, side_by_side: bool | None = None, looked_up: bool = False
) -> Options:
    """Return options that name what :func:`architecture_of` chooses."""
    name = architecture_of(spec, options, side_by_side=side_by_side, looked_up=looked_up).name
    if options.architecture != "static":
        return replace(options, architecture=name)
    return replace(options, architecture=name, order=options.order if name == "static" else ())


def state_of(context: RunContext) -> JoinState:
    """Return the join state that the options ask for."""
    if context.options.architecture == "stems" or len(context.spec.relations) == 1:
        return SteMs(context)
    from millrace.engine.stairs.state import StairState  # here, for most tasks keep their state in SteMs

    return StairState(context)


def policy_of(spec: JoinSpec, options: Options) -> Any:
    """Return the routing policy that is asked for, or the name of the default one."""
    if options.policy is not None:
        return options.policy
    called = any(isinstance(p, Call) for p in spec.residuals)
    joins = len(spec.relations) > 1
    if joins and not called and options.architecture in ("joins", "stairs"):
        return "cumulative"
    return default_policy(joins=joins, predicates=called)
