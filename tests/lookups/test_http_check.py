"""What is wrong with a lookup over HTTP is said before anything runs, and no credentials are ever shown."""

from __future__ import annotations

import logging
import pickle
import socket

import httpx
import pyarrow as pa
import pytest
from aiohttp import web

from millrace.errors import MillraceError
from millrace.limits.secrets import Secrets
from millrace.lookups import http_session
from millrace.lookups.declared import lookup
from millrace.lookups.http import http
from tests.limits.running import run
from tests.lookups.asking_sources import failing, fetched, refusal
from tests.lookups.web import answering, resets, serving, stalls

SCHEMA = pa.schema([("sku", pa.string()), ("price", pa.float64())])
SKU = ("sku",)
VALUE = "s3cret/ välue+%"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: http(""), "expected a text"),
        *((lambda url=url: http(url), "no host to ask") for url in ("ftp://h/{sku}", "/p/{sku}", "h/{sku}")),
        (lambda: lookup("p", SCHEMA, SKU, http("http://h/prices")), "lacks the bind column 'sku': put {sku}"),
        (lambda: lookup("p", SCHEMA, SKU, http("http://h/{skuu}")), "no bind column: did you mean 'sku'?"),
        (lambda: http("http://h/{sku"), "has a { without its counterpart at position 9"),
        (lambda: http("http://h/sku}"), "has a } without its counterpart"),
        (lambda: http("http://{sku}.h/x"), "a key cannot choose whom to ask"),
        (lambda: http("${BASE}{sku}/x"), "a key cannot choose whom to ask"),
        (lambda: http("http://h/", body={"a": {"b": "{k"}}), "the body has a {"),
        (lambda: http("http://h/", body={"a": object()}), "no JSON value"),
        (lambda: http("http://h/", body=float("nan")), "no JSON value"),
        (
            lambda: http("http://h/", rows="items"),
            "rows is 'items', which is no JSON path: one begins with $",
        ),
        (lambda: http("http://h/", rows="$.items["), "no JSON path (RFC 9535)"),
        (lambda: http("http://h/", rows="$.a | $.b"), "no JSON path (RFC 9535)"),
        (lambda: http("http://h/", next="$.links[*]"), "expected a path to one URL"),
        (lambda: http("http://h/", columns={"price": "a["}), "the path of column 'price'"),
        (lambda: http("http://h/", columns={"price": ""}), "the path of column 'price'"),
        (lambda: http("http://h/", headers={"a b": "c"}), "'a b' is no name of a header"),
        (lambda: http("http://h/", headers={"a": "b\r\nc: d"}), "header 'a' has a value"),
        (lambda: http("http://h/", headers={"a": "ä"}), "expected visible ASCII"),
        (lambda: http("http://h/", headers={"a": 5}), "header 'a' has a value"),
        (lambda: http("http://h/", headers={"Content-Length": "5"}), "set by the connection itself"),
        (lambda: http("http://h/", method="PSOT"), "did you mean 'POST'"),
        (lambda: http("http://h/", method="DELETE"), "method is 'DELETE'"),
        (lambda: http("http://h/", missing=(4,)), "missing has 4"),
        (lambda: http("http://h/", missing=("404",)), "missing has '404'"),
        (lambda: http("http://h/", separator=""), "separator is ''"),
        (lambda: http("http://h/", max_bytes=0), "max_bytes is 0"),
        (lambda: http("http://h/", absent="nul"), "did you mean 'null'"),
    ],
)
def test_what_cannot_be_used(made, said):
    """Templates, paths, headers, bodies and options are read when they are declared."""
    assert said in failing(made, MillraceError)


def checked(source, schema=SCHEMA, columns=SKU, **values):
    """The error of a check."""
    return failing(lambda: source.check(schema, columns, Secrets(values)), MillraceError)


@pytest.mark.parametrize(
    ("source", "columns", "said"),
    [
        (http("http://h/{sku}/{skuu}"), SKU, "{skuu}, which is no bind column: did you mean 'sku'"),
        (http("http://h/{sku}"), (), "{sku}, which is no bind column: a scan has none"),
        (http("http://h/{sku}"), ("sku", "price"), "lacks the bind column 'price': put {price} into"),
        (http("http://h/{sku}", columns={"prize": "x"}), SKU, "maps column 'prize', which the lookup lacks"),
        (http("http://h/{sku}", columns={"price": "$..x"}), SKU, "can find several values"),
        (http("${BASE}/{sku}", check=False), SKU, "has no host to ask"),
        (http("http:///{sku}", check=False), SKU, "has no host to ask"),
        (http("http://h:port/{sku}", check=False), SKU, "cannot be used"),
        (http("${NO}/{sku}", check=False), SKU, "no value for the secret ${NO}"),
        # As of a file that was read to its end.
        (http("http://h/{sku}", headers={"A": "${LINE}"}, check=False), SKU, "line break"),
    ],
)
def test_check_compares_template_and_columns(source, columns, said):
    """Every placeholder is a bind column, every bind column has one, and the URL has a host."""
    text = checked(source, columns=columns, BASE="nonsense", LINE="s3cret\n")
    assert said in text and "s3cret" not in text


def test_what_a_check_has_nothing_against():
    """Bind columns in URL or body, a base that is a secret, and braces that are meant."""
    both = http("http://h/{sku}", body=["{price}"], check=False, method="POST")
    both.check(SCHEMA, ("sku", "price"), Secrets())
    assert both.placeholders == ("sku", "price")
    http("${BASE}/{sku}?f={{x}}", check=False).check(SCHEMA, SKU, Secrets({"BASE": "https://h:8080/v1"}))


def test_a_map_has_texts_as_keys():
    """As the objects of JSON do."""
    numbered = SCHEMA.append(pa.field("m", pa.map_(pa.int64(), pa.string())))
    assert "'m' has a map with keys of type int64" in checked(http("http://h/{sku}"), numbered)


def test_check_connects():
    """The host has an address and somebody listens there; no request is sent."""

    async def work():
        async with serving(answering([])) as seen:
            http(seen.url + "/{sku}").check(SCHEMA, SKU, Secrets())
            return seen.asked

    assert run(work()) == []
    assert "has no address" in checked(http("http://nowhere.invalid/{sku}"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "nobody accepts a connection" in checked(http(f"http://127.0.0.1:{port}/{{sku}}"))
    http(f"http://127.0.0.1:{port}/{{sku}}", check=False).check(SCHEMA, SKU, Secrets())


def test_check_connects_to_the_proxy(monkeypatch):
    """Where one leads to the host, the host itself may have no address here."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:pw@127.0.0.1:{proxy.getsockname()[1]}")
        http("http://nowhere.invalid/{sku}").check(SCHEMA, SKU, Secrets())
    text = checked(http("http://nowhere.invalid/{sku}"))
    assert "through a proxy" in text and "pw" not in text


async def test_long_headers_are_read():
    """Some services send tokens of many kilobytes along."""
    async with serving(answering([], headers={"X-Token": "t" * 40_000})) as seen:
        found = await fetched(http(seen.url + "/{sku}"), SCHEMA, SKU, [{"sku": "a"}])
    assert found.num_rows == 0


async def test_requests_go_through_the_proxy(monkeypatch):
    """With what its URL says of who asks; hosts that the environment excepts are asked themselves."""
    async with serving(answering([])) as proxy, serving(answering([])) as near:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://user:pw@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for url in ("http://far.invalid", near.url):
            await fetched(http(url + "/{sku}", check=False), SCHEMA, SKU, [{"sku": "a:b"}])
    (asked,) = proxy.headers
    assert asked["Host"] == "far.invalid" and asked["Proxy-Authorization"] == "Basic dXNlcjpwdw=="
    assert near.asked == ["/a%3Ab"] and "Proxy-Authorization" not in near.headers[0]


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
    async with serving(handler) as seen:
        source = http(
            seen.url.replace("://", "://user:${S}@") + "/${S}/{sku}?key=${S}",
            headers={"X": "Bearer ${H}"},
            body={"in": "${S} and more"},
            method="POST",
            timeout=0.2 if handler is stalls else 10,
        )
        error = await refusal(fetched(source, SCHEMA, SKU, [{"sku": "a"}], secrets))
    assert seen.headers[0]["X"] == "Bearer h1dden-token"
    assert seen.bodies == [{"in": f"{VALUE} and more"}]
    assert "s3cret%2F%20v%C3%A4lue%2B%25" in seen.asked[0]
    texts = [repr(source), source.describe(), source.identity, str(pickle.dumps(source)), caplog.text]
    texts += [str(error), repr(error), str(pickle.dumps(error))]
    for text in texts:
        for part in ("s3cret", "h1dden", "v%C3%A4lue", "välue"):
            assert part not in text, text
    assert error.__cause__ is None


async def test_requests_of_others_stay_in_the_logs(caplog):
    """Only ours are left out."""
    caplog.set_level(logging.DEBUG)
    async with serving(answering([])) as seen:
        await fetched(http(seen.url + "/ours{sku}"), SCHEMA, SKU, [{"sku": "a"}])
        async with httpx.AsyncClient() as client:
            await client.get(seen.url + "/theirs")
    assert "/theirs" in caplog.text and "/ours" not in caplog.text


@pytest.mark.broken_rule
def test_the_rule_on_hosts_keeps_credentials_home(monkeypatch):
    """Without it, another host would be asked: the rule is what stands between."""
    secrets, got = Secrets({"T": "s3cret"}), []

    async def work():
        async with (
            serving(answering([])) as other,
            serving(answering("", 307, {"Location": other.url + "/x"})) as seen,
        ):
            source = http(seen.url + "/{sku}", headers={"X-Token": "${T}"})
            try:
                await fetched(source, SCHEMA, SKU, [{"sku": "a"}], secrets)
            finally:
                got.extend(each.get("X-Token") for each in other.headers)

    error = run(refusal(work()))
    assert (error.kind, error.again, got) == ("redirect", False, [])
    monkeypatch.setattr(http_session, "_same_host", lambda one, other: True)
    run(work())
    assert got == ["s3cret"]
