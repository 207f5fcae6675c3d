"""``millrace.models``: language models in queries, as predicates and as lookups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from millrace.api.session import lookup as declare
from millrace.errors import InputError, OptionError
from millrace.limits.policy import LimitOptions, check_options, settings_of
from millrace.lookups.terms import Terms
from millrace.predicates import PredicateSpec
from millrace.spark.predicates import Predicate

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millrace.lookups.llm.endpoint import Model, Priced
    from millrace.lookups.table import LookupTable

__all__ = ["filter", "lookup"]

_DEFAULTS: LimitOptions = {"max_in_flight": 8, "retries": 3, "timeout": 60.0, "batch": 1}


def filter(  # noqa: A001  # named as PySpark's
    question: str,
    *,
    model: str,
    base_url: str = "https://api.openai.com/v1",
    api_key: str | None = None,
    name: str = "model_filter",
    tokens_per_minute: float | None = None,
    price_read: float = 0.0,
    price_written: float = 0.0,
    max_tokens: int = 16,
    structured: bool = True,
    body: Mapping[str, Any] | None = None,
    on_error: Literal["fail", "null"] = "fail",
    answers: str | Path | None = None,
    **limits: Unpack[LimitOptions],
) -> Predicate:
    """Return a predicate that a language model decides, at any OpenAI-compatible endpoint.

    >>> about = millrace.models.filter(  # doctest: +SKIP
    ...     "Is this review about {product}? {text}", model="small", base_url="http://localhost:8000/v1"
    ... )
    >>> millrace.where(reviews, about)  # doctest: +SKIP
    >>> text = "SELECT * FROM reviews WHERE about(product, text)"
    >>> millrace.sql(text, predicates={"about": about})  # doctest: +SKIP

    Equal rows are asked once. An answer that is cut off or malformed, or for another number of rows, is asked
    again, by halves where it was for several.

    Args:
        question: With ``{column}`` where a row's value stands, to be answered by true or false. The predicate
            takes these columns, in this order, and is applied to them where nothing else is said.
        model: As the endpoint knows it.
        base_url: To which ``/chat/completions`` is added.
        api_key: ``"${NAME}"``: the key is in the environment variable NAME of this process.
        name: What plans, reports and errors call it.
        tokens_per_minute: Tokens read and written in the whole job, as the endpoint reports them for each
            request; evenly spread. Until a request has been answered, requests go one by one.
        price_read: Price of a million tokens read.
        price_written: Price of a million tokens written.
        max_tokens: Tokens that the model may write for one row.
        structured: Whether to send the JSON schema of the answers; False for endpoints that refuse that.
        body: Other fields of the request, such as ``{"max_completion_tokens": 400}``; None as a value leaves
            a field out that would be sent (``temperature``, ``max_tokens``).
        on_error: What becomes of a row that is not answered: ``"fail"`` or ``"null"``.
        answers: As for :func:`millrace.predicate`: where answers outlive the job.
        limits: See :class:`millrace.LimitOptions`; ``timeout`` is 60 here.

    Raises:
        MillraceError: The question mentions no column, the key is written out, a setting is out of range.
    """
    from millrace.lookups.llm.endpoint import Model, Prompt
    from millrace.lookups.llm.filtering import ModelFilter

    fields = tuple((body or {}).items())
    endpoint = Model(model, base_url, api_key, max_tokens, structured, price_read, price_written, fields)
    prompt = Prompt.of(question)
    check_options("millrace.models.filter", limits, settings_of(filter, LimitOptions))
    limits = _DEFAULTS | limits
    if limits["batch"] is None:
        raise OptionError(f"predicate {name!r}: batch is None, expected a whole number above 0")
    spec = PredicateSpec(
        name,
        ModelFilter(endpoint, prompt, limits["max_in_flight"]),
        "async",
        on_error=on_error,
        dedupe=True,
        secrets=endpoint.secrets,
        answers=None if answers is None else Path(answers),
        tokens_per_minute=tokens_per_minute,
        cost=_cost(endpoint, limits),
        **limits,
    )
    return Predicate(spec, columns=prompt.columns)


def lookup(  # noqa: D417  # the docstring says where the other settings are told of
    prompt: str,
    *,
    schema: str | StructType,
    model: str,
    name: str = "model_lookup",
    base_url: str = "https://api.openai.com/v1",
    api_key: str | None = None,
    tokens_per_minute: float | None = None,
    price_read: float = 0.0,
    price_written: float = 0.0,
    max_tokens: int = 256,
    structured: bool = True,
    body: Mapping[str, Any] | None = None,
    on_error: Literal["fail", "skip", "null"] = "fail",
    cache: str | Path | None = None,
    ttl: float | None = None,
    **limits: Unpack[LimitOptions],
) -> LookupTable:
    """Return a lookup table whose rows a language model reads out of the values that it is asked for.

    >>> facts = millrace.models.lookup(  # doctest: +SKIP
    ...     "What does this review say of price and delivery? {text}",
    ...     schema="text string, price string, days_late int", model="small", base_url="http://localhost:8000/v1",
    ... )
    >>> text = "SELECT r.id, f.* FROM reviews r JOIN facts f ON r.text = f.text"
    >>> millrace.sql(text, tables={"facts": facts})  # doctest: +SKIP

    Each distinct key is asked once and has one row. Values are taken strictly in the declared types; what the
    text does not say is null.

    Args:
        prompt: With ``{column}`` for each bind column.
        schema: All columns: those of the prompt, which joins give values, and those to be filled.
        model: As for :func:`filter`, and so are the settings that are not named here.
        name: What plans, reports and errors call it.
        on_error: As for :func:`millrace.lookup`.
        cache: As for :func:`millrace.lookup`.
        ttl: As for :func:`millrace.lookup`.
        limits: As for :func:`filter`.

    Raises:
        MillraceError: The prompt and the schema do not go together, or a setting is out of range.
    """
    from millrace.lookups.llm.endpoint import Model, Prompt
    from millrace.lookups.llm.lookup import ModelSource

    fields = tuple((body or {}).items())
    endpoint = Model(model, base_url, api_key, max_tokens, structured, price_read, price_written, fields)
    template = Prompt.of(prompt)
    check_options("millrace.models.lookup", limits, settings_of(lookup, LimitOptions))
    cost = _cost(endpoint, limits)
    terms = Terms(tokens_per_minute=tokens_per_minute, cost=cost, **(_DEFAULTS | limits))
    via = ModelSource(endpoint, template, terms)
    return declare(name, schema, list(template.columns), via, on_error=on_error, cache=cache, ttl=ttl)


def _cost(model: Model, limits: LimitOptions) -> Priced | None:
    """Return what tells the cost of a call, where there is a bound for it."""
    from millrace.lookups.llm.endpoint import Priced

    if limits.get("max_cost") is None:
        return None
    if not model.price_read and not model.price_written:
        raise InputError("max_cost needs prices: give price_read and price_written, of a million tokens each")
    return Priced(model)
