"""The compiler process: it compiles texts that it reads from a pipe.

The process does not run the packages `einsql` and `einsql.kernels`, which import what a session
needs. It imports this module and those of the compiler.
"""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.kernels.compiler.object_code import ObjectCode

if TYPE_CHECKING:
    from einsql.kernels.compiler import kernel_files, llvm_compiler
else:  # loaded when a kernel is compiled
    llvm_compiler = LazyModule("einsql.kernels.compiler.llvm_compiler")
    kernel_files = LazyModule("einsql.kernels.compiler.kernel_files")

IDLE = 60.0
"""Seconds without a text after which the process ends, and frees its memory."""
HELLO = b"einsql"
"""The first answer, which shows that the executable is Python."""


def serve() -> None:
    """Compiles texts from standard input until it is closed, or none comes for `IDLE` seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # output of the compiler is not an answer
        os.dup2(null, standard)
    os.write(answers, HELLO)
    with suppress(EOFError, OSError):
        while os.name != "posix" or select.select([requests], [], [], IDLE)[0]:
            home, key, source = json.loads(received(requests))
            try:
                answer = b"+" + stored(home, key, source).to_bytes()
            except Exception as error:
                answer = b"-" + f"{type(error).__name__}: {error}".encode()
            send(answers, answer)


def stored(home: str | None, key: str, source: str) -> ObjectCode:
    """Compiles a text and stores the code, unless another process has done so meanwhile."""
    if home is None:
        return llvm_compiler.object_code(key, source)
    with kernel_files.alone(home, key):
        code = kernel_files.read(home, key)
        if code is None:
            code = llvm_compiler.object_code(key, source)
            kernel_files.write(home, key, code)
        return code


def send(pipe: int, content: bytes) -> None:
    """Writes a message."""
    message = memoryview(len(content).to_bytes(8, "little") + content)
    while message:
        message = message[os.write(pipe, message) :]


def received(pipe: int) -> bytes:
    """Reads a message.

    Raises:
        EOFError: The other process has closed the pipe.
    """
    return read(pipe, int.from_bytes(read(pipe, 8), "little"))


def read(pipe: int, count: int) -> bytes:
    """Reads a given number of bytes; see `received`."""
    content = b""
    while len(content) < count:
        more = os.read(pipe, count - len(content))
        if not more:
            raise EOFError
        content += more
    return content
