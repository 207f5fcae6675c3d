"""TLS between tasks and the planning process: a certificate of this process, which travels with the plan.

Nobody vouches for the certificate, and nobody has to: whoever has the plan has it, and accepts no
other. Its key is made in this process and stays in it.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import ssl
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from millrace.limits import codec
from millrace.limits.registration import Address

_DAYS = 3650


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return what a server of this process listens with, and its certificate as PEM text."""
    return _made(os.getpid())


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


def dial(address: Address, hello: codec.Message, seconds: float) -> tuple[ssl.SSLSocket, codec.Message]:
    """Return a connection of a thread that does nothing else meanwhile, and the server's welcome.

    OSError, EOFError or ValueError if one of the steps fails, or takes longer than so many seconds.
    """
    with ExitStack() as opened:
        plain = opened.enter_context(socket.create_connection((address.host, address.port), seconds))
        codec.watch(plain, may_stall=True)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = opened.enter_context(context_of(address).wrap_socket(plain))
        codec.send(connection, {"token": address.token, **hello})
        welcome = codec.receive(connection)
        opened.pop_all()
    return connection, welcome


@cache
def _made(process: int) -> tuple[ssl.SSLContext, str]:
    """Return a context and its certificate; a forked child (another process) makes its own."""
    from cryptography import x509  # where it is needed: tasks do without
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"millrace {process}")])
    now = dt.datetime.now(dt.UTC)  # clocks of executors may be behind
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
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
