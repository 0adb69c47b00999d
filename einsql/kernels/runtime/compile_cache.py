"""The compiled kernels of this process, and the directory where they are stored.

The directory is `$EINSQL_CACHE_DIR`, else `$XDG_CACHE_HOME/einsql`, else
`~/.cache/einsql`. Its files are executed, so only this user may have write access to them and to
the directory, and only this user and root to its ancestors. Otherwise kernels are stored in a
temporary directory of this process, and a notice reports the reason.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
import threading
import time
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from einsql.core import forks
from einsql.core.file_ownership import CHECKED, private_directory
from einsql.core.lazy_module import LazyModule
from einsql.kernels.compiler.cpu_features import host
from einsql.kernels.kernel import Tick
from einsql.kernels.runtime.machine_code import Kernel

if TYPE_CHECKING:
    import hashlib

    from einsql.kernels.compiler import kernel_files, process
    from einsql.kernels.compiler.process import Compilation
else:  # loaded at the first lookup of a kernel
    hashlib = LazyModule("hashlib")
    process = LazyModule("einsql.kernels.compiler.process")
    kernel_files = LazyModule("einsql.kernels.compiler.kernel_files")

COMPILED = (
    "runtime/atomics",
    "runtime/compiled_functions",
    "compiler/memory",
    "runtime/vector_math",
    "runtime/float32_math",
    "runtime/vector_values",
    "runtime/register_tiles",
    "groups/panels",
    "groups/tiles",
    "packed/functions",
    "packed/registers",
    "packed/tile",
    "matmul/dot_tile",
)
"""Modules whose functions are compiled into kernels."""
_COMPILER = (
    *("cpu_features", "kernel_types", "language", "llvm_code", "llvm_compiler", "operations"),
    *("translator", "translated_expressions"),
)
"""Modules that compile kernels; their text is part of a kernel's key, as that of `COMPILED`."""
_PATIENCE = 0.1
"""Seconds of compilation between checks for cancellation."""
_lock = threading.RLock()
_linking = forks.Undisturbed("loaded a kernel")
_loaded: dict[str, Kernel] = {}
"""Loaded kernels by source."""
_compilations: dict[str, Compilation] = {}
"""Kernels that are being compiled, or do not compile, by source."""
_given = 0
"""Kernels that this process has given to the compiler."""
_waited = 0.0
"""Seconds for which calls of `load` have waited for the compiler."""
_temporaries: set[Path] = set()
"""Temporary directories that this process has created without a private directory."""
_directories: dict[tuple[Path, int], Path | None] = {}
"""The directory in use, by the requested one and the user."""
_SETTINGS = ("CPU_NAME", "CPU_FEATURES", "ENABLE_AVX")
"""Numba's environment variables, without their prefix, which restrict the processor."""
notices: list[str] = []
"""Reasons why the configured directory is not used; a session removes and reports them."""
_noticed = False
"""Whether the process has issued the notice, which happens once."""
_PART = "kernels"
"""The name of the directory of kernels in the configured one."""


def _start() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, or is not searchable
        return ""


_START = _start()
"""The working directory at the import of einsql, the base of relative paths."""


class NotCompiledError(Exception):
    """A kernel is being compiled, and the caller does not wait.

    Attributes:
        compilation: The compilation.
    """

    def __init__(self, compilation: Compilation) -> None:
        super().__init__("a kernel is being compiled")
        self.compilation = compilation


class _Thread(threading.local):
    """The behaviour of a thread without a kernel.

    Attributes:
        raises: Whether `load` raises NotCompiledError instead of waiting.
        hurries: Whether `at_hand` returns None instead of waiting.
    """

    raises = False
    hurries = False


_thread = _Thread()


class WithoutWaiting:
    """Context in which `load` raises NotCompiledError instead of waiting, on this thread."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _thread.raises
        _thread.raises = True

    def __exit__(self, *_: object) -> None:
        _thread.raises = self._before


class Hurrying:
    """Context in which `at_hand` does not wait, on this thread.

    Args:
        hurries: Whether it does not wait.
    """

    __slots__ = ("_before", "_hurries")

    def __init__(self, hurries: bool) -> None:
        self._hurries = hurries

    def __enter__(self) -> None:
        self._before = _thread.hurries
        _thread.hurries = self._hurries

    def __exit__(self, *_: object) -> None:
        _thread.hurries = self._before


def at_hand(source: str) -> Kernel | None:
    """Returns a kernel that speeds work up, or None while it is being compiled.

    Args:
        source: The module's text.

    Raises:
        InternalError: The source does not compile.
    """
    try:
        with WithoutWaiting():
            return load(source)
    except NotCompiledError:
        return None if _thread.hurries else load(source)


def is_used() -> bool:
    """Whether this process has loaded a kernel."""
    return bool(_loaded)


def load(source: str, tick: Tick | None = None) -> Kernel:
    """Returns the compiled function `kernel` of a generated module.

    Compiled at most once per process and, with a usable cache directory, once per machine.
    Damaged files are replaced.

    Args:
        source: The module's text.
        tick: Callback during compilation; raises to cancel. A cancelled compilation continues,
            and the next statement uses it.

    Raises:
        InternalError: The source does not compile.
        NotCompiledError: It is being compiled, within `WithoutWaiting`.
    """
    global _waited
    kernel = _loaded.get(source)
    if kernel is not None:
        return kernel
    kernel, compilation = _begun(source)
    if kernel is not None:
        return kernel
    assert compilation is not None
    if not compilation.over.is_set() and _thread.raises:
        raise NotCompiledError(compilation)
    start = time.perf_counter()
    try:
        while not compilation.over.wait(_PATIENCE):
            if tick is not None:
                tick(0.0)
    finally:
        with _lock:
            _waited += time.perf_counter() - start
    return _linked(source, compilation)


def _begun(source: str) -> tuple[Kernel | None, Compilation | None]:
    """The kernel, from the disk if it is there, or the compilation that this call may begin."""
    global _given
    with _lock:
        compilation = _compilations.get(source)
        if source in _loaded or compilation is not None:
            return _loaded.get(source), compilation
        key, home = _key(source), directory()
        code = None if home is None else kernel_files.read(str(home), key)
        if code is not None:
            with _linking:
                kernel = _loaded[source] = Kernel(code)
            return kernel, None
        where = None if home is None else str(home)
        compilation = _compilations[source] = process.submit(where, key, source)
        _given += 1
        return None, compilation


def _linked(source: str, compilation: Compilation) -> Kernel:
    with _lock:
        if source not in _loaded:
            code = compilation.result()
            with _linking:
                _loaded[source] = Kernel(code)
            _compilations.pop(source, None)
        return _loaded[source]


def compilations() -> int:
    """The number of kernels that this process has given to the compiler."""
    return _given


def waited() -> float:
    """The seconds for which statements of this process have waited for the compiler."""
    return _waited


def directory() -> Path | None:
    """The directory of compiled kernels; None if no directory is private to this user."""
    wanted = named()
    key = wanted, os.geteuid() if CHECKED else 0
    with _lock:
        if key not in _directories:
            _directories[key] = _usable(wanted)
        return _directories[key]


def named() -> Path:
    """The directory from the environment, absolute unless the home directory is unknown."""
    own, shared = os.environ.get("EINSQL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return Path(_START, own)
    # The specification of XDG_CACHE_HOME requires that relative paths are ignored.
    home = shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")
    return Path(home, "einsql")


def forget() -> None:
    """Removes the loaded kernels from this process; kernels on disk remain."""
    with _lock:
        _loaded.clear()


def _key(source: str) -> str:
    """The name of a kernel's file: a hash of all that its code depends on."""
    return hashlib.sha256((_runtime() + source).encode()).hexdigest()


@lru_cache(maxsize=1)
def _runtime() -> str:
    """The modules compiled into kernels, the compiler's versions and settings, the processor."""
    paths = [Path(__file__).parents[1] / f"{name}.py" for name in COMPILED]
    paths += [Path(__file__).parents[1] / "compiler" / f"{name}.py" for name in _COMPILER]
    for package in ("llvmlite",):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            paths.append(Path(spec.origin).with_name("_version.py"))
    settings = [f"{k}={os.environ.get(f'NUMBA_{k}')}" for k in _SETTINGS]
    return "".join(
        [
            *(path.read_text(encoding="utf-8") for path in paths),
            *settings,
            platform.machine(),
            *host(),
        ]
    )


def _usable(wanted: Path) -> Path | None:
    """The configured directory's part for kernels, or a temporary one with a notice."""
    global _noticed
    try:
        if not wanted.is_absolute():
            raise OSError("it is relative to a directory that is gone")
        home = Path(private_directory(str(wanted), _PART))
        probe, name = tempfile.mkstemp(dir=home, prefix=".new-")
        os.close(probe)
        os.unlink(name)
        return home
    except OSError as error:
        other = _temporary()
        if not _noticed:
            _noticed = True
            reason = f"{error.filename or wanted}: {error.strerror}" if error.errno else error
            notices.append(
                f"Compiled kernels are not kept in '{wanted}': {reason}. EINSQL_CACHE_DIR names "
                "another directory."
            )
        return other


def _temporary() -> Path | None:
    """Creates a directory that this process removes at exit; None if none is private."""
    for place in (None, "/var/tmp", "/dev/shm"):
        try:
            home = Path(os.path.realpath(tempfile.mkdtemp(prefix="einsql-", dir=place)))
            _temporaries.add(home)
            atexit.register(_remove_temporary, home)
            return Path(private_directory(str(home)))
        except OSError:
            continue
    return None


def _remove_temporary(home: Path) -> None:
    if home in _temporaries:
        shutil.rmtree(home, ignore_errors=True)


def _forget() -> None:
    """Clears a forked child's lists: directories and compilations are the parent's."""
    global _lock
    _lock = threading.RLock()
    _compilations.clear()
    for wanted, home in list(_directories.items()):
        if home in _temporaries:
            del _directories[wanted]
    _temporaries.clear()


forks.at_fork(_forget)
