"""Compiled kernels as object code, and the content of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass

if TYPE_CHECKING:
    import hashlib
    import json
else:  # loaded with the first kernel
    hashlib, json = LazyModule("hashlib"), LazyModule("json")


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """A compiled kernel.

    Attributes:
        entry: The symbol of the kernel's function.
        parameters: For each parameter the dtype, and the number of axes of an array in C order or
            None for a number.
        returns: The dtype of the result; None if there is no result.
        code: The object file.
    """

    entry: str
    parameters: tuple[tuple[str, int | None], ...]
    returns: str | None
    code: bytes

    def to_bytes(self) -> bytes:
        """The content of a file: a digest of the rest, the header's length, header, code."""
        header = json.dumps((self.entry, self.parameters, self.returns)).encode()
        rest = len(header).to_bytes(4, "little") + header + self.code
        return hashlib.sha256(rest).digest() + rest

    @classmethod
    def from_bytes(cls, content: bytes) -> ObjectCode:
        """Reads a file's content.

        Raises:
            ValueError: The content is damaged.
        """
        digest, rest = content[:32], content[32:]
        if hashlib.sha256(rest).digest() != digest:
            raise ValueError("the digest of a compiled kernel differs")
        end = 4 + int.from_bytes(rest[:4], "little")
        entry, parameters, returns = json.loads(rest[4:end])
        return cls(entry, tuple((p[0], p[1]) for p in parameters), returns, rest[end:])
