"""The compile cache on disk: one Python file per source text, and Numba's cache of it.

The directory is `$EINSQL_CACHE_DIR`, else `$XDG_CACHE_HOME/einsql`, else
`~/.cache/einsql`. Its files are executed, so only this user may have write access to them and to
the directory, and only this user and root to its ancestors. Otherwise kernels are cached in a
temporary directory of this process, and a notice reports the reason.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from einsql.core import forks
from einsql.core.file_ownership import CHECKED, private_directory, read_private
from einsql.core.lazy_module import LazyModule
from einsql.errors import InternalError
from einsql.kernels.kernel import Tick

if TYPE_CHECKING:
    import hashlib
    from concurrent import futures
else:  # loaded at the first lookup of a kernel, which takes 7 ms
    hashlib, futures = LazyModule("hashlib"), LazyModule("concurrent.futures")

Kernel = Callable[..., Any]

_STAMP = 946_684_800  # constant mtime in Numba's index, as the file name identifies the source
COMPILED = (
    "runtime/atomics",
    "runtime/compiled_functions",
    "runtime/restrict",
    "runtime/vector_math",
    "runtime/float32_math",
    "runtime/vector_values",
    "groups/tiles",
    "packed/functions",
    "packed/registers",
    "packed/tile",
    "matmul/registers",
)
"""Modules whose functions are compiled into kernels."""
KERNEL = 'cache=True, nogil=True, no_cfunc_wrapper=True, error_model="numpy"'
"""Options of a generated kernel; it has no wrapper for C, because callers use `address`."""
_PATIENCE = 0.1
"""Seconds of compilation between checks for cancellation."""
_lock = threading.RLock()
_compiling = forks.Undisturbed("compiled a kernel")
_loaded: dict[str, Kernel] = {}
"""Loaded kernels by source."""
_addresses: dict[Kernel, int] = {}
"""Addresses of kernels that are called by address."""
_temporaries: set[Path] = set()
"""Temporary directories that this process has created without a private directory."""
_directories: dict[tuple[Path, int], Path | None] = {}
"""The directory in use, by the requested one and the user."""
notices: list[str] = []
"""Reasons why the configured directory is not used; a session removes and reports them."""
_noticed = False
"""Whether the process has issued the notice, which happens once."""
_PYCACHE = "__pycache__"
"""The directory of a module's compiled code, next to the module."""


def _start() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, or is not searchable
        return ""


_START = _start()
"""The working directory at the import of einsql, the base of relative paths."""


def load(source: str, tick: Tick | None = None) -> Kernel:
    """Returns the compiled function `kernel` of a generated module.

    Compiled at most once per process and, with a usable cache directory, once per
    machine. Damaged cache files are rebuilt.

    Args:
        source: The module's text.
        tick: Callback during compilation; raises to cancel. A cancelled compilation continues
            in its thread, and the next statement uses it.

    Raises:
        InternalError: The source does not compile.
    """
    kernel = _loaded.get(source)
    if kernel is not None:
        return kernel
    return _load(source) if tick is None else _awaited(source, tick)


def _load(source: str) -> Kernel:
    with _compiling, _lock:
        kernel = _loaded.get(source)
        if kernel is None:
            key = hashlib.sha256((_runtime() + source).encode()).hexdigest()
            kernel = _loaded[source] = _from_disk(key, source)
        return kernel


def _awaited(source: str, tick: Tick) -> Kernel:
    """Loads a kernel in a thread, because its compilation cannot be interrupted."""
    done: futures.Future[Kernel] = futures.Future()

    def work() -> None:
        try:
            done.set_result(_load(source))
        except BaseException as error:
            done.set_exception(error)

    # A process waits for it at exit: LLVM must not outlive the interpreter.
    threading.Thread(target=work, name="einsql-compiler").start()
    while not futures.wait((done,), timeout=_PATIENCE).done:
        tick(0.0)
    return done.result()


def address(kernel: Kernel) -> int:
    """The address of the machine code of a compiled function.

    By Numba's calling convention it takes an address for the result and one for an exception,
    then its arguments, and returns 0 unless it raised. The function stays in memory.
    """
    known = _addresses.get(kernel)
    if known is None:
        compiled: Any = kernel
        overload = compiled.overloads[compiled.signatures[0]]
        known = int(overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name))
        _addresses[kernel] = known
    return known


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


@lru_cache(maxsize=1)
def _runtime() -> str:
    """The text of the modules compiled into kernels, which is part of the cache key."""
    modules = [Path(__file__).parents[1] / f"{name}.py" for name in COMPILED]
    return "".join(path.read_text(encoding="utf-8") for path in modules)


def _from_disk(key: str, source: str) -> Kernel:
    home = directory()
    if home is not None:
        try:
            return _verified(home, key, source)
        except Exception:  # a damaged pickle may raise any exception; the directory may be removed
            home = _temporary()
    try:
        return _uncached(key, source) if home is None else _verified(home, key, source)
    except Exception as error:
        raise InternalError(f"a generated kernel does not compile: {error}") from error


def _verified(home: Path, key: str, source: str) -> Kernel:
    """Loads a kernel with unchanged files, or compiles it again."""
    path, seal = home / f"k_{key}.py", home / f"k_{key}.sum"
    if _text(path) != source or _digest(home, key) != _text(seal):
        _remove(home, key)
        _write(path, source)
        os.utime(path, (_STAMP, _STAMP))
    kernel: Any = _execute(path, source)
    if kernel.stats.cache_misses:
        for file in _compiled(home, key):
            file.chmod(0o600)  # Numba applies only the umask
        _write(seal, _digest(home, key))
    compiled: Kernel = kernel
    return compiled


def _uncached(key: str, source: str) -> Kernel:
    """Compiles a kernel that is cached only in memory."""
    return _execute(Path(f"<einsql {key}>"), source.replace("cache=True", "cache=False"))


def _execute(path: Path, source: str) -> Kernel:
    # Numba finds its cache through the file, and unpickles through the module's name.
    name = path.stem
    module = sys.modules[name] = ModuleType(name)
    try:
        # Not by the module's loader: Python's bytecode cache trusts the file's time.
        with _beside_source():
            exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    kernel: Kernel = module.kernel
    return kernel


@contextmanager
def _beside_source() -> Iterator[None]:
    """Context in which Numba caches compiled code next to its module, in the checked directory.

    Other users may write to NUMBA_CACHE_DIR, and Numba unpickles its files.
    """
    from numba.core import config  # a quarter of a second, and only compiled kernels need it

    names = ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")
    before = {name: getattr(config, name) for name in names}
    vars(config).update(zip(names, ("", "InTreeCacheLocator"), strict=True))
    try:
        yield
    finally:
        vars(config).update(before)


def _compiled(home: Path, key: str) -> list[Path]:
    return sorted((home / _PYCACHE).glob(f"k_{key}.*"))


def _digest(home: Path, key: str) -> str:
    """The hash of a kernel's compiled files; a file that is not private counts as empty."""
    h = hashlib.sha256()
    for path in _compiled(home, key):
        if path.suffix in (".nbi", ".nbc"):
            data = _bytes(path)
            h.update(f"{path.name} {len(data)}\n".encode())
            h.update(data)
    return h.hexdigest()


def _remove(home: Path, key: str) -> None:
    for path in (home / f"k_{key}.sum", *_compiled(home, key)):
        path.unlink(missing_ok=True)


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace")


def _bytes(path: Path) -> bytes:
    try:
        return read_private(str(path))
    except OSError:
        return b""


def _write(path: Path, text: str) -> None:
    """Writes a file atomically for other processes."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


def _usable(wanted: Path) -> Path | None:
    """The configured directory's part for this Numba version, or a temporary one with a notice."""
    global _noticed
    import numba  # as above

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    part = f"numba{numba.__version__}-py{python}"
    try:
        if not wanted.is_absolute():
            raise OSError("it is relative to a directory that is gone")
        home = Path(private_directory(str(wanted), part, _PYCACHE)).parent
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
            return Path(private_directory(str(home), _PYCACHE)).parent
        except OSError:
            continue
    return None


def _remove_temporary(home: Path) -> None:
    if home in _temporaries:
        shutil.rmtree(home, ignore_errors=True)


def _forget() -> None:
    """Clears the list in a forked child, as the parent removes its temporary directories."""
    global _lock
    _lock = threading.RLock()
    for wanted, home in list(_directories.items()):
        if home in _temporaries:
            del _directories[wanted]
    _temporaries.clear()


forks.at_fork(_forget)
