"""TLS between tasks and the planning process: a certificate of this process, which travels with the plan.

Nobody vouches for the certificate, and nobody has to: whoever has the plan has it, and accepts no
other. Its key is made in this process and stays in it.

A coordinator elsewhere has a secret in common with the planning processes that join it. Key, certificate and
token are made of the secret, always the same. So they know the certificate before they connect, and say
nothing to a server that has another one.
"""

from __future__ import annotations

import datetime as dt
import hmac
import os
import socket
import ssl
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.errors import ExecutionError, InputError
from millrace.limits import codec
from millrace.limits.messages import Hello, Message, Refusal, Welcome
from millrace.limits.registration import Address

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
    from cryptography.hazmat.primitives.hashes import SHA256

LEAST_SECRET = 32
"""Characters of a coordinator's secret, at least."""

_DAYS = 3650
_ALWAYS = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return what a server of this process listens with, and its certificate as PEM text."""
    return _made(os.getpid())


@cache
def secret_context(secret: str) -> tuple[ssl.SSLContext, str]:
    """Return what a server with a secret listens with, and its certificate: a function of the secret.

    Raises:
        InputError: The secret is short: who has the certificate could guess it.
    """
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if len(secret) < LEAST_SECRET:
        raise InputError(
            f"the secret of a coordinator has {len(secret)} characters, expected {LEAST_SECRET} or more, at "
            "random, such as `openssl rand -hex 32` gives"
        )
    key = ed25519.Ed25519PrivateKey.from_private_bytes(_derived(secret, "key"))
    return _context(key, None, "millrace coordinator", 1, _ALWAYS)


def address_of(host: str, port: int, secret: str) -> Address:
    """Return the address of a server that has a secret; raises what :func:`secret_context` does."""
    return Address(host, port, _derived(secret, "token").hex(), secret_context(secret)[1])


def _derived(secret: str, what: str) -> bytes:
    return hmac.digest(secret.encode(errors="surrogateescape"), f"millrace {what}".encode(), "sha256")


@cache
def client_context(certificate: str) -> ssl.SSLContext:
    """Return what accepts the server with this certificate, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is known itself
    context.load_verify_locations(cadata=certificate)
    return context


def context_of(address: Address) -> ssl.SSLContext:
    """Return what accepts the server at an address."""
    return client_context(address.certificate)


def dial(
    address: Address, hello: Hello, purpose: str, seconds: float, *, may_stall: bool
) -> tuple[ssl.SSLSocket, Welcome]:
    """Return a connection of a thread that does nothing else meanwhile, and the server's welcome.

    ``may_stall`` is that of :func:`~millrace.limits.codec.watch`: whether the server may read nothing for
    minutes, because somebody does not take what it has. OSError, EOFError or ValueError if one of the steps
    fails, or takes longer than so many seconds; and what :func:`check_welcome` raises.
    """
    with ExitStack() as opened:
        plain = opened.enter_context(socket.create_connection((address.host, address.port), seconds))
        codec.watch(plain, may_stall=may_stall)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = opened.enter_context(context_of(address).wrap_socket(plain))
        codec.send(connection, hello)
        welcome = check_welcome(address, purpose, codec.receive(connection))
        opened.pop_all()
    return connection, welcome


def check_welcome(address: Address, purpose: str, reply: Message) -> Welcome:
    """Return what a client hears that is let in; ``purpose`` is what the server keeps.

    Raises:
        ExecutionError: It is not; with the server's reason.
    """
    if isinstance(reply, Welcome):
        return reply
    why = reply.why if isinstance(reply, Refusal) else f"it says {type(reply).__name__}"
    raise ExecutionError(f"{address.host}:{address.port} refused to share {purpose}: {why}")


@cache
def _made(process: int) -> tuple[ssl.SSLContext, str]:
    """Return a context and its certificate; a forked child (another process) makes its own."""
    from cryptography import x509  # where it is needed: tasks do without
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    now = dt.datetime.now(dt.UTC)  # clocks of executors may be behind
    dates = now - dt.timedelta(days=1), now + dt.timedelta(days=_DAYS)
    key = ec.generate_private_key(ec.SECP256R1())
    return _context(key, hashes.SHA256(), f"millrace {process}", x509.random_serial_number(), dates)


def _context(
    key: CertificateIssuerPrivateKeyTypes,
    algorithm: SHA256 | None,
    named: str,
    serial: int,
    dates: tuple[dt.datetime, dt.datetime],
) -> tuple[ssl.SSLContext, str]:
    """Return a context with a certificate for a key, which is signed by itself; and the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, named)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, algorithm)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections are not resumed
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:  # 0700; the library reads files only
        file = Path(folder) / "identity.pem"
        file.write_bytes(private + public)
        context.load_cert_chain(file)
    return context, public.decode()
