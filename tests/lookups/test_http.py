"""Lookups over HTTP: what is sent, what comes of answers and failures, and that nobody sees credentials."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import json
import logging
import pickle
import tracemalloc
from decimal import Decimal
from email.utils import format_datetime
from functools import partial
from urllib.parse import parse_qsl, unquote

import pyarrow as pa
import pytest
from aiohttp import web
from hypothesis import given, settings, strategies as st

from millrace.errors import MillraceError
from millrace.limits.secrets import Secrets
from millrace.lookups import clients, template
from millrace.lookups.http import http
from millrace.lookups.table import IndexSpec
from tests.limits.running import run
from tests.lookups.kinds import failing, fetched, keys_of, refusal, scanned
from tests.lookups.web import Web, answering, drips, resets, stalls, truncates

PRICES = pa.schema([("sku", pa.string()), ("price", pa.decimal128(12, 2))])
SKU = ("sku",)
PAIR = pa.schema([("x", pa.string()), ("y", pa.int64())])


def ask(handler, path="/price/{sku}", keys=("a",), schema=PRICES, bound=SKU, secrets=None, by=fetched, **how):
    """Ask a service once; return what came of it and what the service has seen."""
    keys = [key if isinstance(key, dict) else {bound[0]: key} for key in keys]
    with Web(handler) as seen:
        return run(by(http(seen.url + path, **how), schema, bound, keys, secrets)), seen


def refused(handler, **how):
    return ask(handler, by=lambda *given: refusal(fetched(*given)), **how)[0]


def encoded(body, coding, status=200):
    async def handler(request):
        return web.Response(body=body, status=status, headers={"Content-Encoding": coding})

    return handler


def redirecting(to):
    """Send every path but /there elsewhere."""

    async def handler(request):
        if request.path == "/there":
            return web.json_response(ROW)
        raise web.HTTPFound(to(request))

    return handler


def paged(*pages):
    """Serve pages, of prices and where the next one is, by the parameter ``page``; others are not there."""

    async def handler(request):
        page = int(request.query.get("page", 0))
        if page >= len(pages):
            return web.Response(status=404)
        prices, following = pages[page]
        if isinstance(following, str):
            following = following.replace("HOST", str(request.url.origin()))
        rows = [{"sku": "a", "price": price} for price in prices]
        return web.json_response({"items": rows, "next": following})

    return handler


ROW = {"sku": "a", "price": 1}
TEXT = json.dumps(ROW).encode()
ONE = [{"sku": "a", "price": Decimal("1.00")}]
MANY = json.dumps([ROW] * 5000)
LARGE = answering(MANY), encoded(gzip.compress(MANY.encode()), "gzip")
ITEMS = answering({"items": [{"cost": {"amount": "1.00"}}, {"cost": {"amount": 1}}]})
PATHS = ("$.items", "$.items[*]", "$.items[?@.cost]", "$..items[*]")
PAGES = {"rows": "$.items", "next": "$.next"}
TAGS = pa.schema([("sku", pa.string()), ("tags", pa.list_(pa.field("element", pa.string())))])
ARRAYS = answering([["a", [{"name": "x"}, {"name": "y"}]], ["b", []]])
# What the service does, how it is asked, and the rows that come.
ANSWERS = [
    (answering({**ROW, "more": []}), {}, ONE),
    *((ITEMS, {"rows": path, "columns": {"price": "cost.amount"}}, ONE * 2) for path in PATHS),
    (
        ARRAYS,
        {"schema": TAGS, "columns": {"sku": "[0]", "tags": "$[1][*].name"}},
        [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b", "tags": []}],
    ),
    *((answering(*each), {}, []) for each in [("no", 404), ("", 204), ("null",), ("[]",)]),
    (answering("gone", 410), {"missing": (404, 410)}, []),
    (answering({}), {"rows": "$.items", "absent": "null"}, []),
    (encoded(gzip.compress(TEXT), "gzip"), {}, ONE),
    (encoded(gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), "x-gzip"), {}, ONE),
    (redirecting(lambda request: "/there"), {}, ONE),
    (answering(ROW, headers={"X-Token": "t" * 40_000}), {}, ONE),  # as some services send
    *((each, {"max_bytes": len(MANY)}, ONE * 5000) for each in LARGE),
    (paged(([1, 1], "/p?page=1"), ([1], "HOST/p?page=2"), ([], None)), PAGES, ONE * 3),
]


@pytest.mark.parametrize(("handler", "how", "rows"), ANSWERS)
def test_what_answers_come_to(handler, how, rows):
    """Objects and arrays, where paths say, packed, elsewhere on the host or in pages; missing has no rows."""
    assert ask(handler, **how)[0].to_pylist() == rows


KEY_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


def read_back(keys):
    """What a service reads in the path and in the query, for each key."""
    with Web(answering([])) as seen:
        source = http(seen.url + "/p/{sku}/x?q={sku}&r=1")
        for key in keys:
            run(fetched(source, PRICES, SKU, [{"sku": key}]))
    found = []
    for asked in seen.asked:
        path, _, query = asked.partition("?")
        steps = path.split("/")
        inner = unquote(steps[2]) if steps[3:] == ["x"] else None
        found.append((inner, dict(parse_qsl(query, keep_blank_values=True)).get("q")))
    return found


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(KEY_TEXTS.filter(lambda key: key not in (".", "..")), max_size=30))
def test_keys_are_encoded(keys):
    """Whatever the key, the service reads exactly it, in the path and in the query."""
    assert read_back(keys) == [(key, key) for key in keys]


@pytest.mark.broken_rule
def test_the_rule_on_encoding_keeps_keys_whole(monkeypatch):
    """Without it, a key would be read as other steps and parameters."""
    assert read_back(["a/b", "a&r=2"]) == [("a/b", "a/b"), ("a&r=2", "a&r=2")]
    monkeypatch.setattr(template, "quote", lambda text, safe: text)
    assert read_back(["a/b", "a&r=2"]) == [(None, "a/b"), ("a&r=2", "a")]


@pytest.mark.parametrize(
    ("path", "keys", "how", "asked"),
    [
        ("/price/x{sku}", ["."], {}, "/price/x."),
        ("/price/x{sku}", [".."], {}, "/price/x.."),
        ("/price?sku={sku}", [""], {}, "/price?sku="),
        ("/?x={sku}", ["a,", "b"], {"batch": 10, "separator": "|"}, "/?x=a,|b"),
        ("/?y={y}&x={x}", [{"x": "a", "y": 1}, {"x": "b", "y": 2}], {"batch": 2}, "/?y=1,2&x=a,b"),
    ],
)
def test_keys_in_a_url(path, keys, how, asked):
    """Dots and nothing where they are no other address; several are joined, in one order for all columns."""
    pair = {"schema": PAIR, "bound": ("x", "y")} if isinstance(keys[0], dict) else {}
    _, seen = ask(answering([]), path, keys, **pair, **how)
    assert [unquote(each) for each in seen.asked] == [asked]


KEYS = [
    (pa.int64(), -5, "-5"),
    (pa.float64(), 1.5, "1.5"),
    (pa.float32(), 0.1, "0.1"),
    (pa.bool_(), True, "true"),
    (pa.decimal128(9, 2), Decimal("1E+2"), "100.00"),
    (pa.date32(), dt.date(2024, 1, 2), "2024-01-02"),
    (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "2024-01-02T00%3A00%3A00Z"),
    (pa.timestamp("us"), dt.datetime(2024, 1, 2, 3), "2024-01-02T03%3A00%3A00"),  # noqa: DTZ001
    (pa.binary(), b"\xff\xfe", "%2F%2F4%3D"),
]


@pytest.mark.parametrize(("kind", "key", "text"), KEYS, ids=lambda each: str(each)[:30])
def test_keys_of_every_type(kind, key, text):
    """Each type has one text, and comes back as the key of rows that lack it."""
    schema = pa.schema([("k", kind), ("price", pa.int64())])
    rows, seen = ask(answering({"price": 1}), "/{k}", [key], schema, ("k",))
    assert seen.asked == [f"/{text}"]
    assert rows.column("k").equals(pa.array([key], kind))


def test_keys_in_a_body():
    """A text that is the column alone becomes the key, or all keys; numbers stay numbers."""
    schema = pa.schema([("k", pa.decimal128(20, 2)), ("v", pa.int64())])
    body = {"where": {"k": "{k}"}, "text": "k is {k}", "max": 5, "list": ["{k}"], "token": "${TOKEN}"}
    how = {"schema": schema, "bound": ("k",), "method": "POST", "secrets": Secrets({"TOKEN": "s3cret"})}
    _, seen = ask(answering([]), "/q", [Decimal("123456789012345678.90")], body=body, **how)
    number, text = 123456789012345678.9, "k is 123456789012345678.90"
    filled = {"where": {"k": number}, "text": text, "max": 5, "list": [number], "token": "s3cret"}
    assert seen.bodies == [filled]
    assert seen.headers[0]["Content-Type"] == "application/json"
    _, seen = ask(answering([]), "/q", [Decimal(1), Decimal("2.5")], body={"k": "{k}"}, batch=2, **how)
    assert seen.bodies == [{"k": [1.0, 2.5]}]


def test_headers_are_sent_with_their_secrets():
    """The user's own win over ours."""
    own = {"Authorization": "Bearer ${TOKEN}", "accept": "application/x", "User-Agent": "me"}
    _, seen = ask(answering([]), secrets=Secrets({"TOKEN": "s3cret"}), headers=own)
    sent = {name.lower(): value for name, value in seen.headers[0].items()}
    assert sent["authorization"] == "Bearer s3cret"
    assert (sent["accept"], sent["user-agent"]) == ("application/x", "me")
    _, seen = ask(answering([]))
    assert (seen.headers[0]["Accept"], seen.headers[0]["Accept-Encoding"]) == ("application/json", "gzip")


def test_retry_after():
    """Seconds and dates are both understood, nonsense is ignored, the past is now."""

    def wait(status, said):
        return refused(answering("", status, said and {"Retry-After": said})).wait

    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)  # who asks has a bound: ``max_retry_after``
    assert 3500 < wait(503, format_datetime(soon, usegmt=True)) <= 3600
    assert (wait(429, "7"), wait(429, "Wed, 21 Oct 2015 07:28:00 GMT")) == (7, 0)
    assert [wait(429, "soon"), wait(429, None), wait(400, "7")] == [None] * 3


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_unpacks_to_gigabytes_takes_no_memory(status):
    """Of a megabyte that stands for a gigabyte no more is unpacked than may be read."""
    bomb = b"".join([gzip.compress(b" " * (64 << 20))] * 16)
    assert len(bomb) < 2 << 20
    tracemalloc.start()
    error = refused(encoded(bomb, "gzip", status), max_bytes=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.kind == ("too large" if status == 200 else "HTTP 500")
    assert peak < 16 << 20


def test_rows_of_one_tenant_are_not_another_ones(tmp_path):
    """Whatever tells tenants apart makes another cache: in the URL, in a header, in the body."""
    for source in (
        http("https://x/${WHO}/{sku}", check=False),
        http("https://x/{sku}", headers={"Authorization": "Bearer ${WHO}"}, check=False),
        http("https://x", method="POST", body={"who": "${WHO}", "sku": "{sku}"}, check=False),
    ):
        spec = IndexSpec("prices", SKU, PRICES, source, cache=tmp_path)
        one, same, other = (spec.fingerprint(Secrets({"WHO": who})) for who in ("a", "a", "b"))
        assert one == same != other


AGAIN = (408, 425, 429, 500, 502, 503, 504)
FINAL = (400, 401, 403, 405, 409, 410, 422, 304)
UNFIT = {
    '{"sku": "a", "price": "dear"}': "column 'price': expected decimal(12,2), got 'dear' (str)",
    '{"sku": "a"}': "column 'price'",
    '["a", 1]': "expected a row as an object with fields sku, price, got 'a' (str)",
}
UNSENDABLE = {(".",): "", ("..",): "", ("",): "'sku' is empty", ("a,b", "c"): "another separator"}
NOWHERE = {
    "/price/a": "came before",
    "http://other.invalid/": "another host",
    5: "no text",
    "http://h:port": "no URL",
}
LONG = paged(*(([1] * 100, f"/p?page={n}" if n < 10 else None) for n in range(1, 11)))
DEEP = answering("[" * 100_000 + "]" * 100_000)
NOT_GZIP = [
    (gzip.compress(gzip.compress(TEXT)), "gzip, gzip"),
    (TEXT, "br"),
    (TEXT, "gzip"),
    (gzip.compress(TEXT)[:-9], "gzip"),
]
# What a request ends in, whether it may pass, what the service does, how it is asked, and what is said.
REFUSALS = [
    *((f"HTTP {each}", True, answering("because", each), {}, "because") for each in AGAIN),
    *((f"HTTP {each}", False, answering("because", each), {}, "") for each in FINAL),
    ("HTTP 404", False, answering("no", 404), {"missing": ()}, ""),
    ("HTTP 404", False, paged(([1], "/p?page=1")), PAGES, ""),  # rows would be missed without a word
    *(("timeout", True, each, {"timeout": 0.2}, "") for each in (stalls, drips)),
    *(("connection", True, each, {}, "") for each in (resets, truncates)),
    *(
        ("malformed answer", True, answering(each), {}, "")
        for each in ('[{"sku": "a", "pri', "<html>busy", "")
    ),
    ("malformed answer", False, DEEP, {}, "too deeply"),
    *(("malformed answer", True, encoded(*each), {}, "") for each in NOT_GZIP),
    *(("HTTP 403", False, encoded(*each, 403), {}, "") for each in NOT_GZIP),
    *(("unfit answer", False, answering(each), {}, said) for each, said in UNFIT.items()),
    ("unfit answer", False, answering([{"price": 1}]), {"path": "/?sku={sku}", "batch": 2}, "'sku'"),
    ("unfit answer", False, answering({"error": "no"}), {"rows": "$.items"}, "nothing at rows='$.items'"),
    ("unfit answer", False, answering("[" * 500 + "]" * 500), {"rows": "$..x"}, ""),
    *(
        ("unsendable key", False, answering([]), {"keys": keys, "batch": len(keys)}, said)
        for keys, said in UNSENDABLE.items()
    ),
    ("redirect", False, redirecting(lambda request: request.path + "x"), {}, ""),
    *(("next page", False, paged(([1], to)), PAGES, said) for to, said in NOWHERE.items()),
    *(("too large", False, each, {**PAGES, "max_bytes": 10_000}, "") for each in (LONG, *LARGE)),
]


@pytest.mark.parametrize(("kind", "again", "handler", "how", "said"), REFUSALS)
def test_what_a_request_ends_in(kind, again, handler, how, said):
    """Overload and connections may do better the next time; a wrong request or answer does not."""
    error = refused(handler, **how)
    assert (error.kind, error.again) == (kind, again), error
    assert said in error.message
    if kind == "unfit answer":
        assert "GET http://127.0.0.1" in error.message


def test_a_scan_is_read_page_by_page():
    """Without placeholders a source returns everything; its limits are those of a page, and 404 is no end."""
    with Web(LONG) as seen:
        source = http(seen.url + "/all", max_bytes=10_000, **PAGES)
        source.check(PRICES, (), Secrets())
        assert [batch.num_rows for batch in run(scanned(source, PRICES))] == [100] * 10
    with Web(paged(([], "/p?page=1"), ([], "/p?page=2"), ([1], None))) as seen:  # each has a time of its own
        batches = run(scanned(http(seen.url + "/all", **PAGES), PRICES))
        assert [batch.num_rows for batch in batches] == [0, 0, 1]
    with Web(answering("no", 404)) as seen:
        assert run(refusal(scanned(http(seen.url + "/all"), PRICES))).kind == "HTTP 404"
    assert not http("http://host/{sku}").can_scan


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (12, 4)])
async def test_connections_are_used_again(at_once, most):
    """Requests that do not overlap need one connection; those that do, as many as the terms allow."""
    keys = [keys_of(PRICES, SKU, [{"sku": str(i)}]) for i in range(at_once)]
    with Web(answering([])) as seen:
        session = http(seen.url + "/{sku}", max_in_flight=4).open(PRICES, SKU, Secrets())
        for _ in range(5):
            await asyncio.gather(*map(session.fetch, keys))
        await session.close()
    assert len(seen.connections) <= most and len(seen.asked) == 5 * at_once


def check(url):
    http(url + "/{sku}").check(PRICES, SKU, Secrets())


def test_nobody_there():
    """A check connects, and sends no request; a connection that is refused later may pass."""
    with Web(answering([])) as seen:
        check(seen.url)
        run(fetched(http(seen.url + "/{sku}"), PRICES, SKU, [{"sku": "a"}]))
    assert seen.asked == ["/a"]
    assert "nobody accepts a connection" in failing(partial(check, seen.url), MillraceError)
    assert "has no address" in failing(partial(check, "http://nowhere.invalid"), MillraceError)
    error = run(refusal(fetched(http(seen.url + "/{sku}"), PRICES, SKU, [{"sku": "a"}])))
    assert (error.kind, error.again) == ("connection", True)


async def test_checks_and_requests_go_through_the_proxy(monkeypatch):
    """With what its URL says of who asks; hosts that the environment excepts are asked themselves."""
    with Web(answering([])) as proxy, Web(answering([])) as near:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://user:pw@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for url in ("http://far.invalid", near.url):
            check(url)
            await fetched(http(url + "/{sku}"), PRICES, SKU, [{"sku": "a:b"}])
    (asked,) = proxy.headers
    assert asked["Host"] == "far.invalid" and asked["Proxy-Authorization"] == "Basic dXNlcjpwdw=="
    assert near.asked == ["/a%3Ab"] and "Proxy-Authorization" not in near.headers[0]
    text = failing(partial(check, "http://far.invalid"), MillraceError)
    assert "through a proxy" in text and "pw" not in text


VALUE = "s3cret/ välue+%"


async def echoes(request):
    """Answer with everything that was sent, as an error."""
    return web.Response(status=400, text=f"{request.raw_path} {request.headers} {await request.text()}")


async def echoes_rows(request):
    """Answer with everything that was sent, in a row of another type."""
    return web.json_response({"sku": "a", "price": f"{request.path} {dict(request.headers)}"})


@pytest.mark.parametrize(
    "handler",
    [echoes, echoes_rows, stalls, resets, answering(f"no JSON: {VALUE}"), answering({"sku": VALUE})],
    ids=["echoes", "echoes_rows", "stalls", "resets", "malformed", "absent"],
)
async def test_secrets_stay_hidden(handler, caplog):
    """In texts, pickles, errors and logs, whatever the service writes back."""
    secrets = Secrets({"S": VALUE, "H": "h1dden-token"})
    caplog.set_level(logging.DEBUG)
    with Web(handler) as seen:
        source = http(
            seen.url.replace("://", "://user:${S}@") + "/${S}/{sku}?key=${S}",
            headers={"X": "Bearer ${H}"},
            body={"in": "${S} and more"},
            method="POST",
            timeout=0.2 if handler is stalls else 10,
        )
        error = await refusal(fetched(source, PRICES, SKU, [{"sku": "a"}], secrets))
    assert seen.headers[0]["X"] == "Bearer h1dden-token"
    assert seen.bodies == [{"in": f"{VALUE} and more"}]
    assert "s3cret%2F%20v%C3%A4lue%2B%25" in seen.asked[0]
    texts = [repr(source), source.describe(), source.identity, str(pickle.dumps(source)), caplog.text]
    texts += [str(error), repr(error), str(pickle.dumps(error))]
    for text in texts:
        for part in ("s3cret", "h1dden", "v%C3%A4lue", "välue"):
            assert part not in text, text
    assert error.__cause__ is None


@pytest.mark.broken_rule
def test_the_rule_on_hosts_keeps_credentials_home(monkeypatch):
    """Without it, another host would be asked: the rule is what stands between."""
    with Web(answering([])) as other:
        leads_away = answering("", 307, {"Location": other.url + "/x"})
        how = {"headers": {"X-Token": "${T}"}, "secrets": Secrets({"T": "s3cret"})}
        error = refused(leads_away, **how)
        assert (error.kind, error.again, other.asked) == ("redirect", False, [])
        monkeypatch.setattr(clients, "is_same_host", lambda one, other: True)
        ask(leads_away, **how)
    assert [each["X-Token"] for each in other.headers] == ["s3cret"]
