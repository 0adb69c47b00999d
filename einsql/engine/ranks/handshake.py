"""Mutual authentication of a driver and its ranks, before either unpickles a message.

    driver: challenge
    rank:   challenge, proof, size, its Started as a pickle
    driver: proof, or a refusal

A proof is an HMAC with the shared key over both challenges and the Started. The key is never
sent, and neither side can reuse the other's proof.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
import socket
import struct

from einsql.engine.ranks.messages import Started

_CHALLENGE = 32
"""Size of a challenge in bytes: 256 random bits, so that no challenge repeats."""
_PROOF = 32
"""Size of a proof in bytes: the digest of SHA-256."""
_SIZE = struct.Struct("!I")
_HEAD = _CHALLENGE + _PROOF + _SIZE.size
_LONGEST = 4096
"""Greatest size of a pickled Started in bytes; a host name has at most 255 bytes."""
_REFUSAL = bytes(_PROOF)
"""The answer to a wrong proof. A rank without an answer may have been dropped by a busy driver."""


class Refused(ConnectionError):  # noqa: N818 - ConnectionRefusedError means that no process listens
    """The other side does not know the key."""


class Answering:
    """The driver's side of the handshake with one caller; it never blocks."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._heard = bytearray()
        self.challenge = secrets.token_bytes(_CHALLENGE)

    @property
    def missing(self) -> int:
        """The bytes that the caller still has to send, as far as known; 0 at the end."""
        size = _HEAD
        if len(self._heard) >= _HEAD:
            size += _SIZE.unpack_from(self._heard, _HEAD - _SIZE.size)[0]
        return size - len(self._heard)

    def hear(self, text: bytes) -> None:
        """Processes bytes of the caller, at most `missing`.

        Raises:
            Refused: The caller is no rank.
        """
        self._heard += text
        if self.missing > _LONGEST:
            raise Refused("The message is too long")

    def answer(self) -> tuple[bytes, Started | None]:
        """Returns the answer to the caller once `missing` is 0, and the caller's Started.

        A caller without the key gets a refusal, and its Started is not unpickled.
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
    """The rank's side of the handshake; it waits up to the timeout of the socket.

    Raises:
        Refused: One of the two sides does not know the key.
        OSError: The driver has closed the connection, or does not answer in time.
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
            raise ConnectionResetError("the driver has closed the connection")
        text += part
    return bytes(text)
