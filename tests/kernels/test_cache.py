"""Compiled kernels survive the process, and damage or bad company to their files."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from einsql.errors import InternalError
from einsql.kernels import cache

SOURCE = """\
import numpy as np
from numba import njit
from einsql.kernels.runtime import less


@njit("void(float64[::1])", cache=True, nogil=True)
def kernel(a):
    for n in range(a.shape[0]):
        a[n] = 1.0 if less(a[n], 0.5) else 0.0
"""

CHILD = f"""
import numpy as np
from einsql.kernels import cache
kernel = cache.load({SOURCE!r})
a = np.array([0.25, 0.75])
kernel(a)
assert a.tolist() == [1.0, 0.0]
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


def start(home: Path) -> subprocess.Popen[str]:
    root = Path(cache.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD],
        env={**os.environ, "EINSQL_CACHE_DIR": str(home), "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> tuple[int, int]:
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    hits, misses = text.split()
    return int(hits), int(misses)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "kernels"
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(place))
    cache.forget()
    return place


def load() -> Any:
    cache.forget()
    return cache.load(SOURCE)


def test_the_second_process_compiles_nothing(home: Path) -> None:
    both = [start(home), start(home)]  # at once, into an empty directory
    assert all(sum(output(p)) == 1 for p in both)
    assert output(start(home)) == (1, 0)


def test_files_belong_to_the_user_alone(home: Path) -> None:
    load()
    for path in (home, cache.directory()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (text,) = cache.directory().glob("k_*.py")
    assert stat.S_IMODE(text.stat().st_mode) == 0o600


@pytest.mark.parametrize("suffix", [".py", ".sum", ".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damaged_files_are_rebuilt(home: Path, suffix: str, damage: str) -> None:
    load()
    (path,) = (p for p in cache.directory().rglob("k_*") if p.name.endswith(suffix))
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
    assert load().stats.cache_misses
    assert path.parent.is_relative_to(home)
    assert load().stats.cache_hits


def test_a_directory_others_may_write_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    load()
    assert not home.exists() or not list(home.iterdir())
    assert not cache.directory().is_relative_to(home)


def test_an_unusable_directory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(blocked / "kernels"))
    load()
    assert not cache.directory().is_relative_to(tmp_path)


def test_source_that_does_not_compile_is_an_internal_error(home: Path) -> None:
    with pytest.raises(InternalError, match="does not compile"):
        cache.load("from numba import njit\nkernel = njit('void(int64)')(len)\n")


def test_a_statement_leaves_while_a_kernel_compiles(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LeftError(Exception):
        pass

    def tick(done: float) -> None:
        raise LeftError

    monkeypatch.setattr(cache, "_PATIENCE", 0.0)
    with pytest.raises(LeftError):
        cache.load(SOURCE, tick)
    kernel: Any = cache.load(SOURCE)  # what had begun is not begun again
    again: Any = cache.load(SOURCE, tick)
    assert again is kernel
    assert sum(kernel.stats.cache_misses.values()) == 1


def test_no_two_functions_of_kernels_have_one_name() -> None:
    """Kernels that different processes compiled would call one of them for both."""
    names: dict[tuple[str, str], object] = {}
    for name in cache.COMPILED:
        module = importlib.import_module(f"einsql.kernels.{name.replace('/', '.')}")
        for made in vars(module).values():
            function = getattr(made, "py_func", None)
            if function is not None:
                key = function.__module__, function.__qualname__
                assert names.setdefault(key, made) is made, key
