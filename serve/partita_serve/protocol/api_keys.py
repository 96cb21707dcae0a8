"""API keys: the known ones, and the check of a request's key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from partita.errors import PropertyError
from partita_serve.protocol.errors import Unauthorized


class ApiKeys:
    """The keys that clients may have; only their digests are kept.

    Args:
        keys: The keys; if there are none, no request needs one.

    Example:
        >>> ApiKeys(["secret"]).check([(b"authorization", b"Bearer secret")])
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """The keys of a file, one a line; empty lines and those that begin with # are left out.

        Raises:
            PropertyError: It cannot be read, or holds none.
        """
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise PropertyError(f"The keys in '{path}' cannot be read: {error}.") from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise PropertyError(f"'{path}' holds no keys; write one a line.")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Does nothing if a request may come in.

        Args:
            headers: Names in lower case, and values.

        Raises:
            Unauthorized: Keys are needed, and none of the headers has a known one.
        """
        if self._digests and not any(self._is_known(name, value) for name, value in headers):
            raise Unauthorized(
                "The request needs a key that this server knows: send 'Authorization: Bearer KEY' "
                "or 'X-API-Key: KEY'."
            )

    def _is_known(self, name: bytes, value: bytes) -> bool:
        if name == b"authorization":
            kind, _, value = value.partition(b" ")
            if kind.lower() != b"bearer":
                return False
        elif name != b"x-api-key":
            return False
        given = _digest(value.strip())
        # All of them are compared, so that the time does not show which.
        return sum(hmac.compare_digest(given, key) for key in self._digests) > 0


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
