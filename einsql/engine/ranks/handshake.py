"""Mutual authentication of a driver and its ranks, before either unpickles a message.

    driver: challenge
    rank:   challenge, proof, size, its Started as a pickle
    driver: proof

A proof is an HMAC over both challenges and the Started by the shared key, so neither side
reveals the key, and neither can use the other's proof as its own.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
import socket
import struct

from einsql.engine.ranks.messages import Started

_CHALLENGE = 32
_PROOF = 32
_SIZE = struct.Struct("!I")
_HEAD = _CHALLENGE + _PROOF + _SIZE.size
_LONGEST = 4096
"""Bytes of a Started, at most; a host's name has no more than 255."""
_REFUSAL = bytes(_PROOF)
"""The answer to a wrong proof; a rank that gets none may have been dropped for want of room."""


class Refused(ConnectionError):  # noqa: N818 - ConnectionRefusedError says that nobody listens
    """The other side does not know the key."""


class Answering:
    """The driver's part, as far as it has come with one caller; it never waits."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._heard = bytearray()
        self.challenge = secrets.token_bytes(_CHALLENGE)

    @property
    def missing(self) -> int:
        """Bytes that the caller still has to send, as far as that is known; 0 at the end."""
        size = _HEAD
        if len(self._heard) >= _HEAD:
            size += _SIZE.unpack_from(self._heard, _HEAD - _SIZE.size)[0]
        return size - len(self._heard)

    def hear(self, text: bytes) -> None:
        """Takes bytes of the caller, no more than are missing.

        Raises:
            Refused: The caller is no rank.
        """
        self._heard += text
        if self.missing > _LONGEST:
            raise Refused("The message is too long")

    def answer(self) -> tuple[bytes, Started | None]:
        """The answer to the caller once nothing is missing, and its description of itself.

        Without the key the caller gets a refusal, and its description is not read.
        """
        heard = bytes(self._heard)
        theirs, proof, said = heard[:_CHALLENGE], heard[_CHALLENGE:][:_PROOF], heard[_HEAD:]
        both = self.challenge + theirs
        if not hmac.compare_digest(proof, _proof(self._key, b"rank", both + said)):
            return _REFUSAL, None
        started = pickle.loads(said)
        assert isinstance(started, Started)
        return _proof(self._key, b"driver", both), started


def introduce(line: socket.socket, key: bytes, started: Started) -> None:
    """The rank's part; it waits as long as the socket's own limit says.

    Raises:
        Refused: One of the two does not know the key.
        OSError: The driver has gone, or does not answer in time.
    """
    own, text = secrets.token_bytes(_CHALLENGE), pickle.dumps(started)
    both = _read(line, _CHALLENGE) + own
    line.sendall(own + _proof(key, b"rank", both + text) + _SIZE.pack(len(text)) + text)
    answer = _read(line, _PROOF)
    if not hmac.compare_digest(answer, _proof(key, b"driver", both)):
        raise Refused("the driver has another key")


def _proof(key: bytes, who: bytes, text: bytes) -> bytes:
    return hmac.digest(key, who + text, "sha256")


def _read(line: socket.socket, size: int) -> bytes:
    text = bytearray()
    while len(text) < size:
        part = line.recv(size - len(text))
        if not part:
            raise ConnectionResetError("the driver has closed the line")
        text += part
    return bytes(text)
