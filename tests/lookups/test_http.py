"""Lookups over HTTP: what is sent, what answers come to, and how each kind of failure ends."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import json
import tracemalloc
from decimal import Decimal
from email.utils import format_datetime
from urllib.parse import parse_qsl, unquote

import pyarrow as pa
import pytest
from aiohttp import web
from hypothesis import given, settings, strategies as st

from millrace.limits.secrets import Secrets
from millrace.lookups import template
from millrace.lookups.http import http
from millrace.lookups.index_spec import IndexSpec
from tests.limits.running import run
from tests.lookups.asking_sources import fetched, keys_of, refusal, scanned
from tests.lookups.web import answering, drips, resets, serving, stalls, truncates

PRICES = pa.schema([("sku", pa.string()), ("price", pa.decimal128(12, 2))])
SKU = ("sku",)
PAIR = pa.schema([("x", pa.string()), ("y", pa.int64())])


def ask(handler, path="/price/{sku}", keys=("a",), schema=PRICES, bound=SKU, secrets=None, **settings_of):
    """Ask a service once; return the rows and what the service has seen."""
    given_keys = [key if isinstance(key, dict) else {bound[0]: key} for key in keys]

    async def work():
        async with serving(handler) as seen:
            source = http(seen.url + path, **settings_of)
            return await fetched(source, schema, bound, given_keys, secrets), seen

    return run(work())


def refused(handler, path="/price/{sku}", keys=("a",), schema=PRICES, bound=SKU, secrets=None, **settings_of):
    """Ask a service once, in vain."""
    given_keys = [{bound[0]: key} for key in keys]

    async def work():
        async with serving(handler) as seen:
            source = http(seen.url + path, **settings_of)
            return await refusal(fetched(source, schema, bound, given_keys, secrets))

    return run(work())


def test_one_object_is_one_row():
    """The simplest service: a URL for each key, an object for each answer."""
    rows, seen = ask(answering({"sku": "a", "price": 12.34, "more": []}))
    assert rows.to_pylist() == [{"sku": "a", "price": Decimal("12.34")}]
    assert seen.asked == ["/price/a"]
    assert seen.headers[0]["Accept"] == "application/json"


def test_rows_are_where_their_path_says():
    """An array of objects in an envelope; rows without the key have the one that was asked for."""
    answer = {"items": [{"cost": {"amount": "1.50"}}, {"cost": {"amount": 2}}]}
    for path in ("$.items", "$.items[*]", "$.items[?@.cost]", "$..items[*]"):
        rows, _ = ask(answering(answer), rows=path, keys=["ä/b"], columns={"price": "cost.amount"})
        assert rows.column("sku").to_pylist() == ["ä/b"] * 2, path
        assert rows.column("price").to_pylist() == [Decimal("1.50"), Decimal("2.00")], path


def test_columns_can_be_read_from_arrays():
    """Rows that are arrays are read by position; a path to several values fills an array column."""
    schema = pa.schema([("sku", pa.string()), ("tags", pa.list_(pa.field("element", pa.string())))])
    answer = [["a", [{"name": "x"}, {"name": "y"}]], ["b", []]]
    rows, _ = ask(answering(answer), schema=schema, columns={"sku": "[0]", "tags": "$[1][*].name"})
    assert rows.to_pylist() == [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b", "tags": []}]


@pytest.mark.parametrize(("status", "text"), [(404, "no"), (204, ""), (200, "null"), (200, "[]")])
def test_no_rows(status, text):
    """A key that the service does not know has no rows, however it says so."""
    rows, _ = ask(answering(text, status))
    assert rows.num_rows == 0


def test_what_means_missing_can_be_chosen():
    """Other statuses than 404 may say that there is nothing, and 404 may be an error."""
    assert ask(answering("gone", 410), missing=(404, 410))[0].num_rows == 0
    assert refused(answering("no", 404), missing=()).kind == "HTTP 404"


KEY_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


def read_back(keys):
    """What a service reads in the path and in the query, for each key."""
    schema = pa.schema([("sku", pa.string())])

    async def work():
        async with serving(answering([])) as seen:
            session = http(seen.url + "/p/{sku}/x?q={sku}&r=1").open(schema, SKU, Secrets())
            for key in keys:
                await session.fetch(keys_of(schema, SKU, [{"sku": key}]))
            await session.close()
            return seen.asked

    found = []
    for asked in run(work()):
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


@pytest.mark.parametrize("key", [".", ".."])
def test_a_key_may_be_dots_within_a_step(key):
    """There it is no other address."""
    assert ask(answering([]), "/price/x{sku}", keys=[key])[0].num_rows == 0


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


def test_several_keys_in_a_url():
    """With a batch they are joined, each encoded; of several columns in the same order."""
    rows, seen = ask(
        answering([{"x": "a,", "y": 1}]), "/?x={x}&y={y}", [{"x": "a,", "y": 1}, {"x": "b", "y": 2}], PAIR,
        ("x", "y"), batch=10, separator="|",
    )  # fmt: skip
    assert rows.to_pylist() == [{"x": "a,", "y": 1}]
    assert unquote(seen.asked[0]) == "/?x=a,|b&y=1|2"


def test_keys_in_a_body():
    """A text that is the column alone becomes the key, or all keys; numbers stay numbers."""
    schema = pa.schema([("k", pa.decimal128(20, 2)), ("v", pa.int64())])
    body = {"where": {"k": "{k}"}, "text": "k is {k}", "max": 5, "list": ["{k}"], "token": "${TOKEN}"}
    secrets = Secrets({"TOKEN": "s3cret"})
    _, seen = ask(
        answering([]),
        "/q",
        [Decimal("123456789012345678.90")],
        schema,
        ("k",),
        secrets,
        method="POST",
        body=body,
    )
    number = 123456789012345678.9
    assert seen.bodies == [
        {
            "where": {"k": number},
            "text": "k is 123456789012345678.90",
            "max": 5,
            "list": [number],
            "token": "s3cret",
        }
    ]
    assert seen.headers[0]["Content-Type"] == "application/json"
    keys = [{"k": Decimal(1)}, {"k": Decimal("2.5")}]
    _, seen = ask(answering([]), "/q", keys, schema, ("k",), method="POST", body={"k": "{k}"}, batch=2)
    assert seen.bodies == [{"k": [1.0, 2.5]}]


def test_headers_are_sent_with_their_secrets():
    """The user's own win over ours."""
    headers = {"Authorization": "Bearer ${TOKEN}", "accept": "application/x", "User-Agent": "me"}
    _, seen = ask(answering([]), secrets=Secrets({"TOKEN": "s3cret"}), headers=headers)
    sent = {name.lower(): value for name, value in seen.headers[0].items()}
    assert (sent["authorization"], sent["accept"], sent["user-agent"]) == (
        "Bearer s3cret",
        "application/x",
        "me",
    )


def test_retry_after():
    """Seconds and dates are both understood, nonsense is ignored, the past is now."""
    assert refused(answering("", 429, {"Retry-After": "7"})).wait == 7
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    wait = refused(answering("", 503, {"Retry-After": format_datetime(soon, usegmt=True)})).wait
    assert 3500 < wait <= 3600  # who asks has a bound: ``max_retry_after``
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=40)
    assert 30 < refused(answering("", 503, {"Retry-After": format_datetime(soon, usegmt=True)})).wait <= 40
    assert refused(answering("", 429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})).wait == 0
    assert refused(answering("", 429, {"Retry-After": "soon"})).wait is None
    assert refused(answering("", 429)).wait is None
    assert refused(answering("", 400, {"Retry-After": "7"})).wait is None


async def test_nobody_there():
    """A refused connection may pass."""
    async with serving(answering([])) as seen:
        url = seen.url
    error = await refusal(fetched(http(url + "/{sku}"), PRICES, SKU, [{"sku": "a"}]))
    assert (error.kind, error.again) == ("connection", True)


def test_an_envelope_without_rows():
    """Is an error, unless what is absent is null."""
    assert ask(answering({}), rows="$.items", absent="null")[0].num_rows == 0


def test_a_long_answer_is_cut_off():
    """It is not read to its end, packed or not."""
    long = json.dumps([{"sku": "a", "price": 1}] * 5000)

    async def packed(request):
        return web.Response(body=gzip.compress(long.encode()), headers={"Content-Encoding": "gzip"})

    for handler in (answering(long), packed):
        assert refused(handler, max_bytes=10_000).kind == "too large"
        assert ask(handler, max_bytes=len(long))[0].num_rows == 5000


def encoded(body, coding, status=200):
    """Answer with a body that says that it is encoded."""

    async def handler(request):
        return web.Response(body=body, status=status, headers={"Content-Encoding": coding})

    return handler


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


def test_only_what_was_asked_for_is_unpacked():
    """One gzip, of one member or several; a second layer, another coding and damaged ones are refused."""
    text = json.dumps({"sku": "a", "price": 1}).encode()
    _, seen = ask(encoded(gzip.compress(text), "gzip"))
    assert seen.headers[0]["Accept-Encoding"] == "gzip"
    assert ask(encoded(gzip.compress(text[:9]) + gzip.compress(text[9:]), "x-gzip"))[0].num_rows == 1
    for body, coding in [
        (gzip.compress(gzip.compress(text)), "gzip, gzip"),
        (text, "br"),
        (text, "gzip"),
        (gzip.compress(text)[:-9], "gzip"),
    ]:
        assert refused(encoded(body, coding)).kind == "malformed answer", coding
        error = refused(encoded(body, coding, 403))
        assert (error.kind, error.again) == ("HTTP 403", False), coding


def test_an_empty_key_asks_for_nothing_else():
    """In the path it would ask for all prices; as a parameter it is a value like others."""
    assert ask(answering([]), path="/price?sku={sku}", keys=[""])[1].asked == ["/price?sku="]


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


def redirecting(to):
    """Send every path but /there elsewhere."""

    async def handler(request):
        if request.path == "/there":
            return web.json_response({"sku": "a", "price": 1})
        raise web.HTTPFound(to(request))

    return handler


def test_redirects_within_a_host_are_followed():
    """As the whole service may have moved."""
    rows, seen = ask(redirecting(lambda request: "/there"))
    assert rows.num_rows == 1
    assert seen.asked == ["/price/a", "/there"]


async def test_redirects_to_other_hosts_are_not_followed():
    """Headers may carry credentials; another port is another service, too."""
    async with (
        serving(answering([])) as other,
        serving(redirecting(lambda _: other.url + "/x?y")) as seen,
    ):
        error = await refusal(fetched(http(seen.url + "/{sku}"), PRICES, SKU, [{"sku": "a"}]))
        error, asked = error, other.asked
    assert (error.kind, error.again, asked) == ("redirect", False, [])


def paged(pages, following):
    """Serve pages by the parameter ``page``."""

    async def handler(request):
        page = int(request.query.get("page", 0))
        rows = [{"sku": "a", "price": price} for price in pages[page]]
        return web.json_response({"items": rows, "next": following(request, page)})

    return handler


def test_pages_are_followed():
    """A long answer comes in pages, with relative or absolute addresses, to null or nothing."""
    pages = [[1, 2], [3], []]
    for base in ("", "{url}"):

        def following(request, page, base=base):
            return f"{base.format(url=request.url.origin())}/p?page={page + 1}" if page < 2 else None

        rows, seen = ask(paged(pages, following), rows="$.items", next="$.next")
        assert rows.column("price").to_pylist() == [1, 2, 3]
        assert len(seen.asked) == 3


AGAIN = (408, 425, 429, 500, 502, 503, 504)
FINAL = (400, 401, 403, 405, 409, 410, 422, 304)
UNFIT = {
    '{"sku": "a", "price": "dear"}': "column 'price': expected decimal(12,2), got 'dear' (str)",
    '{"sku": "a", "price": 1.234}': "expected decimal(12,2), got 1.234",
    '{"sku": 5, "price": 1}': "column 'sku': expected string, got 5 (int)",
    '{"sku": "a"}': "column 'price' is not in a row",
    '["a", 1]': "expected a row as an object with fields sku, price, got 'a' (str)",
    "5": "expected a row as an object",
}
UNSENDABLE = {(".",): "", ("..",): "", ("",): "'sku' is empty", ("a,b", "c"): "another separator"}
NOWHERE = {
    "/price/a": "came before",
    "http://other.invalid/": "another host",
    5: "no text",
    "http://h:port": "no URL",
}
PAGES = {"rows": "$.items", "next": "$.next"}
LONG = paged([[1] * 100] * 10, lambda request, page: f"/p?page={page + 1}" if page < 9 else None)
DEEP = answering("[" * 100_000 + "]" * 100_000)
# What a request ends in, whether it may pass, what the service does, how it is asked, and what is said.
REFUSALS = [
    *((f"HTTP {each}", True, answering("because", each), {}, "because") for each in AGAIN),
    *((f"HTTP {each}", False, answering("because", each), {}, "") for each in FINAL),
    *(("timeout", True, each, {"timeout": 0.2}, "") for each in (stalls, drips)),
    *(("connection", True, each, {}, "") for each in (resets, truncates)),
    *(
        ("malformed answer", True, answering(each), {}, "")
        for each in ('[{"sku": "a", "pri', "<html>busy", "")
    ),
    ("malformed answer", False, DEEP, {}, "too deeply"),
    *(("unfit answer", False, answering(each), {}, said) for each, said in UNFIT.items()),
    ("unfit answer", False, answering([{"price": 1}]), {"path": "/?sku={sku}", "batch": 2}, "'sku'"),
    ("unfit answer", False, answering({"error": "no"}), {"rows": "$.items"}, "nothing at rows='$.items'"),
    ("unfit answer", False, answering("[" * 500 + "]" * 500), {"rows": "$..x"}, ""),
    *(
        ("unsendable key", False, answering([]), {"keys": keys, "batch": len(keys)}, said)
        for keys, said in UNSENDABLE.items()
    ),
    ("redirect", False, redirecting(lambda request: request.path + "x"), {}, ""),
    *(("next page", False, paged([[1]], lambda *_, to=to: to), PAGES, said) for to, said in NOWHERE.items()),
    ("too large", False, LONG, {**PAGES, "max_bytes": 10_000}, ""),
]


@pytest.mark.parametrize(("kind", "again", "handler", "how", "said"), REFUSALS)
def test_what_a_request_ends_in(kind, again, handler, how, said):
    """Overload and connections may do better the next time; a wrong request or answer does not."""
    error = refused(handler, **how)
    assert (error.kind, error.again) == (kind, again), error
    assert said in error.message
    if kind == "unfit answer":
        assert "GET http://127.0.0.1" in error.message


async def test_a_scan_is_read_page_by_page():
    """Without placeholders a source returns everything; its limits are those of a page."""
    pages = [[1] * 100] * 5
    handler = paged(pages, lambda request, page: f"?page={page + 1}" if page < 4 else None)
    async with serving(handler) as seen:
        source = http(seen.url + "/all", rows="$.items", next="$.next", max_bytes=10_000)
        assert source.can_scan
        source.check(PRICES, (), Secrets())
        batches = await scanned(source, PRICES)
    assert [batch.num_rows for batch in batches] == [100] * 5
    assert not http("http://host/{sku}").can_scan


def test_only_a_key_can_be_missing():
    """Not everything that there is, nor a page in the middle: rows would be missed without a word."""

    async def everything():
        async with serving(answering("no", 404)) as seen:
            return await refusal(scanned(http(seen.url + "/all"), PRICES))

    assert run(everything()).kind == "HTTP 404"

    async def first_page(request):
        if request.query_string:
            return web.Response(status=404)
        return web.json_response({"items": [{"price": 1}], "next": "?page=2"})

    assert refused(first_page, rows="$.items", next="$.next").kind == "HTTP 404"


def test_connections_are_used_again():
    """Requests that do not overlap need one connection; those that do, as many as the terms allow."""

    async def work(at_once):
        async with serving(answering([])) as seen:
            session = http(seen.url + "/{sku}", max_in_flight=4).open(PRICES, SKU, Secrets())
            for _ in range(5):
                keys = [keys_of(PRICES, SKU, [{"sku": str(i)}]) for i in range(at_once)]
                await asyncio.gather(*map(session.fetch, keys))
            await session.close()
            await session.close()
            return len(seen.connections), len(seen.asked)

    assert run(work(1)) == (1, 5)
    connections, asked = run(work(12))
    assert connections <= 4 and asked == 60
