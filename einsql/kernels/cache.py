"""Compiled kernels, kept on disk: one Python file per source text, and Numba's cache of it.

The directory is `$EINSQL_CACHE_DIR`, else `$XDG_CACHE_HOME/einsql`, else
`~/.cache/einsql`. What lies there is executed, so it must belong to the user and be
writable by nobody else; otherwise kernels go to a temporary directory of this process.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import lru_cache
from pathlib import Path
from typing import Any

from einsql import forks
from einsql.errors import InternalError
from einsql.kernels.kernel import Tick

Kernel = Callable[..., Any]

_STAMP = 946_684_800  # Numba's index names its source by time and size; the name has the rest
COMPILED = (
    "atomics",
    "calls",
    "runtime",
    "restrict",
    "maths",
    "singles",
    "lanes",
    "groups/carried",
    "groups/tiles",
    "packed/functions",
    "packed/registers",
    "packed/tile",
    "products/registers",
    "windows/registers",
)
"""Modules whose functions are compiled into kernels."""
_PATIENCE = 0.1
"""Seconds of compiling after which the statement is asked whether it goes on."""
_lock = threading.RLock()
_compiling = forks.Undisturbed("compiled a kernel")
_loaded: dict[str, Kernel] = {}
"""Kernels by their source."""
_addresses: dict[Kernel, int] = {}
"""Where kernels lie that are called by their addresses."""
_directories: dict[Path, Path] = {}
_temporaries: set[Path] = set()
"""Directories that this process has made for want of a private one."""


def load(source: str, tick: Tick | None = None) -> Kernel:
    """The compiled function `kernel` of a generated module.

    Compiled at most once per process and, with a usable cache directory, once per
    machine. Damaged cache files are rebuilt.

    Args:
        source: The module's text.
        tick: Called while it compiles; raises to leave. What has begun to compile goes on
            in a thread of its own and is there for the next statement.

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
    """Loads a kernel in a thread, for neither Python nor LLVM can be stopped as they compile."""
    done: Future[Kernel] = Future()

    def work() -> None:
        try:
            done.set_result(_load(source))
        except BaseException as error:
            done.set_exception(error)

    # A process that exits meanwhile waits for it: LLVM must not outlive the interpreter.
    threading.Thread(target=work, name="einsql-compiler").start()
    while not wait((done,), timeout=_PATIENCE).done:
        tick(0.0)
    return done.result()


def address(kernel: Kernel) -> int:
    """Where the machine code of a compiled function lies.

    By Numba's calling convention it takes an address for the result and one for an exception,
    then its arguments, and returns 0 unless it raised. The function stays in memory.
    """
    known = _addresses.get(kernel)
    if known is None:
        compiled: Any = kernel
        found = compiled.overloads[compiled.signatures[0]]
        known = int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))
        _addresses[kernel] = known
    return known


def directory() -> Path:
    """Where this process keeps compiled kernels; created if need be."""
    wanted = _wanted()
    with _lock:
        if wanted not in _directories:
            _directories[wanted] = _private(wanted) or _temporary()
        return _directories[wanted]


def forget() -> None:
    """Drops the kernels this process has loaded; those on disk stay."""
    with _lock:
        _loaded.clear()


@lru_cache(maxsize=1)
def _runtime() -> str:
    """The text of what kernels call; it is compiled into them, so it is part of their name."""
    modules = [Path(__file__).parent / f"{name}.py" for name in COMPILED]
    return "".join(path.read_text(encoding="utf-8") for path in modules)


def _from_disk(key: str, source: str) -> Kernel:
    try:
        return _verified(directory(), key, source)
    except Exception:  # whatever a damaged pickle raises, or a directory that went away
        try:
            return _verified(_temporary(), key, source)
        except Exception as error:
            raise InternalError(f"a generated kernel does not compile: {error}") from error


def _verified(home: Path, key: str, source: str) -> Kernel:
    """Loads a kernel whose files are as they were left, or compiles it anew."""
    path, seal = home / f"k_{key}.py", home / f"k_{key}.sum"
    if _text(path) != source or _digest(home, key) != _text(seal):
        _remove(home, key)
        _write(path, source)
        os.utime(path, (_STAMP, _STAMP))
    kernel: Any = _execute(path, source)
    if kernel.stats.cache_misses:
        _write(seal, _digest(home, key))
    compiled: Kernel = kernel
    return compiled


def _execute(path: Path, source: str) -> Kernel:
    # Numba finds its cache through the file, and unpickles through the module's name.
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by the module's loader: Python's bytecode cache trusts the file's time.
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    kernel: Kernel = module.kernel
    return kernel


def _compiled(home: Path, key: str) -> list[Path]:
    return sorted((home / "__pycache__").glob(f"k_{key}.*"))


def _digest(home: Path, key: str) -> str:
    """Hash of a kernel's compiled files; one that vanishes meanwhile counts as empty."""
    h = hashlib.sha256()
    for path in _compiled(home, key):
        if path.suffix in (".nbi", ".nbc"):
            data = path.read_bytes() if path.exists() else b""
            h.update(f"{path.name} {len(data)}\n".encode())
            h.update(data)
    return h.hexdigest()


def _remove(home: Path, key: str) -> None:
    for path in (home / f"k_{key}.sum", *_compiled(home, key)):
        path.unlink(missing_ok=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _write(path: Path, text: str) -> None:
    """Writes a file that other processes see whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


def _wanted() -> Path:
    named = os.environ.get("EINSQL_CACHE_DIR")
    if named:
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "einsql"


def _private(base: Path) -> Path | None:
    """The cache directory for this Numba under `base`, or None where it is unsafe."""
    try:
        import numba  # costs a quarter of a second, and only compiled kernels need it

        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        home = base / f"numba{numba.__version__}-py{python}"
        for place in (base, home):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(place):
                return None
        probe, name = tempfile.mkstemp(dir=home, prefix=".new-")
        os.close(probe)
        os.unlink(name)
    except OSError:
        return None
    return home


def _is_ours(place: Path) -> bool:
    found = place.stat()
    if not stat.S_ISDIR(found.st_mode):
        return False
    if not hasattr(os, "geteuid"):  # Windows guards a user's directories by other means
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH


def _temporary() -> Path:
    home = Path(tempfile.mkdtemp(prefix="einsql-"))
    _temporaries.add(home)
    atexit.register(_remove_temporary, home)
    return home


def _remove_temporary(home: Path) -> None:
    """Removes a directory that this process has made."""
    if home in _temporaries:
        shutil.rmtree(home, ignore_errors=True)


def _forget() -> None:
    """A child of a fork makes temporary directories of its own; its parent removes the others."""
    global _lock
    _lock = threading.RLock()
    for wanted, home in list(_directories.items()):
        if home in _temporaries:
            del _directories[wanted]
    _temporaries.clear()


forks.at_fork(_forget)
