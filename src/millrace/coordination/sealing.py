"""Values that pass through hands which shall not read them: sealed for whom they are meant.

Both sides agree on a key without saying it (X25519), so who only listens learns nothing. Who changes what
passes could take a side's place, as who changes a plan on its way to the tasks could.
"""

from __future__ import annotations

import pickle
import secrets
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE = 12
_KEY = 32


class Seal:
    """What two sides know of each other that nobody else does.

    Args:
        own: The key of this side; made for this one pair.
        theirs: The public key of the other side, 32 bytes.

    Raises:
        ValueError: That is no public key.
    """

    def __init__(self, own: X25519PrivateKey, theirs: bytes) -> None:
        shared = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        key = HKDF(hashes.SHA256(), _KEY, salt=None, info=b"millrace coordinator").derive(shared)
        self._cipher = AESGCM(key)

    def seal(self, value: object, label: str) -> bytes:
        """Return a value, pickled, that opens with the same seal and label alone."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, pickle.dumps(value), label.encode())

    def open(self, sealed: bytes, label: str) -> Any:
        """Return what was sealed under a label.

        Raises:
            ValueError: It was sealed by somebody else, for something else, or was changed.
        """
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], label.encode())
        except InvalidTag:
            raise ValueError(f"not sealed as {label} by the other side") from None
        return pickle.loads(plain)  # noqa: S301  # the other side's own, as the cipher says
