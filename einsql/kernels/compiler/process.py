"""The process that compiles kernels, so that statements run on meanwhile.

A compiler in this process would hold Python's lock. The process begins with the first kernel that
is not in the cache, takes one text after another from its standard input, and ends when that is
closed or after some time without a text. It stores what it has compiled before it answers, also if
the process that asked has ended meanwhile.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from einsql.core import forks
from einsql.core.records import dataclass
from einsql.errors import InternalError
from einsql.kernels.compiler.object_code import ObjectCode
from einsql.kernels.compiler.server import HELLO, IDLE, read, received, send, stored

ATTEMPTS = 2
"""Processes that are started for one text: the operating system may end one for want of memory."""
_BARE = ("einsql", "einsql.kernels", "einsql.kernels.groups", "einsql.kernels.packed")
"""Packages that import what sessions need; in the process they only name their modules."""
_MAIN = """\
import json, sys
from types import ModuleType
sys.path[:], bare = json.loads(sys.argv[1])
for name, path in bare.items():
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [path]
from einsql.kernels.compiler.server import serve
serve()
"""
_undisturbed = forks.Undisturbed("compiled a kernel")


@dataclass(slots=True, eq=False)
class Compilation:
    """A kernel that is being compiled.

    Attributes:
        home: The directory that the process stores it in; None if there is none.
        key: The name of the kernel in the directory.
        source: The text.
        over: Set when the kernel is compiled, or is known not to compile.
        code: The compiled kernel.
        error: The reason why the text does not compile.
    """

    home: str | None
    key: str
    source: str
    over: threading.Event = field(default_factory=threading.Event)
    code: ObjectCode | None = None
    error: str = ""

    def result(self) -> ObjectCode:
        """The compiled kernel.

        Raises:
            InternalError: The text does not compile.
        """
        if self.code is None:
            raise InternalError(f"a generated kernel does not compile: {self.error}")
        return self.code


class _NoProcessError(Exception):
    """No other process can be started."""


class CompilerProcess:
    """The compiler of this process: a queue, the thread that waits for answers, and its process."""

    def __init__(self) -> None:
        self._queue: deque[Compilation] = deque()
        self._change = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._here = threading.Lock()
        """Held while this process itself compiles."""

    def submit(self, work: Compilation) -> None:
        """Compiles a text after those that were submitted before it."""
        with self._change:
            self._queue.append(work)
            if self._thread is None:
                # The interpreter does not wait for it at exit: the compilation is abandoned.
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.name = "einsql-compiler"
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Lets the process end after its current text; waits for a compilation in this process."""
        with self._here:  # LLVM must not outlive the interpreter
            pass
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            process.returncode = 0  # it is never waited for, and Python does not warn of that

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._queue:
                    if not self._change.wait(2 * IDLE) and self._process is not None:
                        self._end()  # it has ended; until then the system keeps its entry
                work = self._queue[0]
            try:
                self._compile(work)
            except Exception as error:
                work.error = f"{type(error).__name__}: {error}"
            with self._change:
                self._queue.popleft()
            work.over.set()

    def _compile(self, work: Compilation) -> None:
        try:
            for attempt in range(ATTEMPTS):
                with suppress(EOFError, OSError):
                    content = self._ask(work)
                    break
                self._end()
                if attempt == ATTEMPTS - 1:
                    raise InternalError("the compiler process ended")
        except _NoProcessError:
            with _undisturbed, self._here:
                work.code = stored(work.home, work.key, work.source)
            return
        if content[:1] == b"+":
            work.code = ObjectCode.from_bytes(content[1:])
        else:
            work.error = content[1:].decode()

    def _ask(self, work: Compilation) -> bytes:
        text = json.dumps((work.home, work.key, work.source)).encode()
        if self._process is not None and self._process.poll() is None:
            requests, answers = _pipes(self._process)
            send(requests, text)
            return received(answers)
        self._end()
        self._process = _started()
        requests, answers = _pipes(self._process)
        hello = b""
        with suppress(EOFError, OSError):
            # It compiles the text also if this process ends before it has begun to read.
            send(requests, text)
            hello = read(answers, len(HELLO))
        if hello != HELLO:
            self._end()
            raise _NoProcessError
        return received(answers)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            process.kill()
            process.wait()


def _started() -> subprocess.Popen[bytes]:
    """Starts the process; Python's own settings for new processes name the executable.

    Raises:
        _NoProcessError: The process cannot be started.
    """
    root = Path(__file__).parents[3]
    bare = {name: str(root.joinpath(*name.split("."))) for name in _BARE}
    places = json.dumps(([os.path.abspath(p) for p in sys.path], bare))
    spawn = sys.modules.get("multiprocessing.spawn")  # loaded where a program has set one
    executable = sys.executable if spawn is None else spawn.get_executable()
    try:
        if not executable:
            raise _NoProcessError
        return subprocess.Popen(
            # The module `site` would take 20 ms; the path is complete without it.
            [executable, "-S", "-c", _MAIN, places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Keys that interrupt a statement do not reach it.
            start_new_session=True,
        )
    except OSError:
        raise _NoProcessError from None


def _pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The descriptors of the standard input and output of the process."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin.fileno(), process.stdout.fileno()


def _close(process: subprocess.Popen[bytes]) -> None:
    """Closes both pipes, also while a thread reads from one of them."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


_compiler = CompilerProcess()


def submit(home: str | None, key: str, source: str) -> Compilation:
    """Compiles a text in the compiler process; see `Compilation`."""
    work = Compilation(home, key, source)
    _compiler.submit(work)
    return work


def _forget() -> None:
    """Closes a forked child's copies of the pipes; the process belongs to the parent."""
    global _compiler
    _compiler.close()
    _compiler = CompilerProcess()


atexit.register(lambda: _compiler.close())
forks.at_fork(_forget)
