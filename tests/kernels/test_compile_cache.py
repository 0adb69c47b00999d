"""Compiled kernels survive the process, and damage or bad company to their files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from einsql.errors import InternalError
from einsql.kernels.runtime import compile_cache

SOURCE = """\
from einsql.kernels.runtime.compiled_functions import less


@njit("void(float64[::1])")
def kernel(a):
    for n in range(a.shape[0]):
        a[n] = 1.0 if less(a[n], 0.5) else 0.0
"""

CHILD = f"""
import numpy as np
from einsql.kernels.runtime import compile_cache
kernel = compile_cache.load({SOURCE!r})
a = np.array([0.25, 0.75])
kernel(a)
assert a.tolist() == [1.0, 0.0]
print(compile_cache.compilations())
"""


def start(home: Path) -> subprocess.Popen[str]:
    root = Path(compile_cache.__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD],
        env={**os.environ, "EINSQL_CACHE_DIR": str(home), "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )


def compiled_by(process: subprocess.Popen[str]) -> int:
    """The number of kernels that a process has given to its compiler."""
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "kernels"
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(place))
    compile_cache.forget()
    yield place
    compile_cache.notices.clear()  # no session has taken them


def load() -> int:
    """Loads the kernel anew; returns the number of kernels that were compiled for it."""
    compile_cache.forget()
    before = compile_cache.compilations()
    compile_cache.load(SOURCE)
    return compile_cache.compilations() - before


def used() -> Path:
    """The directory that this process keeps kernels in."""
    home = compile_cache.directory()
    assert home is not None
    return home


def test_the_second_process_compiles_nothing(home: Path) -> None:
    both = [start(home), start(home)]  # at once, into an empty directory
    assert all(compiled_by(p) <= 1 for p in both)
    assert compiled_by(start(home)) == 0


def test_files_belong_to_the_user_alone(home: Path) -> None:
    load()
    for path in (home, used()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (text,) = used().glob("k_*.kernel")
    assert stat.S_IMODE(text.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "empty"])
def test_damaged_files_are_rebuilt(home: Path, damage: str) -> None:
    load()
    (path,) = used().glob("k_*.kernel")
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage in ("truncated", "empty"):
        path.write_bytes(data[: len(data) // 2] if damage == "truncated" else b"")
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
    assert load() == 1
    assert path.parent.is_relative_to(home)
    assert load() == 0


def test_a_directory_others_may_write_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    load()
    assert not home.exists() or not list(home.iterdir())
    assert not used().is_relative_to(home)


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
@pytest.mark.parametrize("below", ["", "{home}"])
def test_no_level_of_the_cache_may_be_written_by_others(
    home: Path, monkeypatch: pytest.MonkeyPatch, mode: int, below: str
) -> None:
    load()
    level = Path(below.format(home=used()) or home)
    level.chmod(mode)
    again = home.with_name("again")
    again.symlink_to(home)
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(again))
    assert not used().is_relative_to(home)
    assert level.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_an_ancestor_that_others_may_write_is_refused_unless_sticky(
    home: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shared = home.with_name("shared")
    shared.mkdir()
    os.chown(shared, -1, 54321) if os.geteuid() == 0 else None
    shared.chmod(mode)
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(shared / "kernels"))
    if os.geteuid() == 0 or mode == 0o777:
        assert not used().is_relative_to(shared)
    shared.chmod(0o1777)
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(shared / "others"))
    assert used().is_relative_to(shared)


@ROOT
def test_a_file_of_another_user_is_compiled_anew(home: Path) -> None:
    load()
    (path,) = used().glob("k_*.kernel")
    os.chown(path, 54321, 54321)
    assert load() == 1
    assert path.stat().st_uid == 0


@ROOT
def test_a_link_of_another_user_is_not_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link, theirs = (home.with_name(n) for n in ("target", "link", "theirs"))
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(link))
    assert used().is_relative_to(target)
    os.chown(link, 54321, 54321, follow_symlinks=False)
    link.rename(theirs)
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(theirs))
    assert not used().is_relative_to(target)


@ROOT
def test_another_user_does_not_run_what_root_has_left(home: Path) -> None:
    load()
    os.chmod(home.parent, 0o755)
    other = SOURCE.replace("0.5", "0.75")  # Python and Numba may be readable by root alone
    text = f"""
import os
from einsql.kernels.runtime import compile_cache
compile_cache.load({other!r})
os.setgid(54321)
os.setuid(54321)
os.environ["EINSQL_CACHE_DIR"] = {str(home)!r}
compile_cache.load({SOURCE!r})
print(compile_cache.compilations(), compile_cache.directory())
"""
    found = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "EINSQL_CACHE_DIR": f"{home}-root"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    compiled, used = found.stdout.split()
    assert compiled == "2", found.stderr
    assert not Path(used).is_relative_to(home)


def test_created_directories_and_files_ignore_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        load()
    finally:
        os.umask(before)
    assert load() == 0
    for path in (home, *home.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_relative_directory_is_where_the_process_began(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    text = "import einsql, os; from einsql.kernels.runtime import compile_cache; os.chdir('later')"
    subprocess.run(
        [sys.executable, "-c", f"{text}; print(compile_cache.directory())"],
        env={**os.environ, "EINSQL_CACHE_DIR": "kernels"}, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert (tmp_path / "kernels").is_dir()
    assert not list((tmp_path / "later").iterdir())


def test_one_notice_says_why_a_directory_is_not_used(tmp_path: Path) -> None:
    text = """
import einsql
con = einsql.connect()
con.execute("SET jit = always")
con.execute("SELECT SUM(EXP(i * 1.5)) FROM range(10) AS r(i)").fetchall()
con.execute("SELECT SUM(LN(i + 1.5)) FROM range(10) AS r(i)").fetchall()
print(*con.notices, sep="\\n")
"""
    home = tmp_path / "kernels"
    home.mkdir()
    home.chmod(0o777)
    found = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "EINSQL_CACHE_DIR": str(home)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (notice,) = found.stdout.splitlines()
    assert f"'{home}' may be written by other users" in notice


def test_an_unusable_directory_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = home.with_name("file")
    blocked.write_text("not a directory")
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(blocked / "kernels"))
    load()
    assert not used().is_relative_to(home.parent)


def test_without_any_directory_kernels_are_kept_in_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "directory", lambda: None)
    compile_cache.forget()
    kernel = compile_cache.load(SOURCE)
    a = np.array([0.25, 0.75])
    kernel(a)
    assert a.tolist() == [1.0, 0.0]


def test_source_that_does_not_compile_is_an_internal_error(home: Path) -> None:
    with pytest.raises(InternalError, match="does not compile"):
        compile_cache.load("kernel = len\n")


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere", "/bin/echo"])
def test_without_a_compiler_process_this_one_compiles(home: Path, executable: str) -> None:
    text = f"""
import multiprocessing, os, sys
multiprocessing.set_executable({executable!r})
{CHILD}
assert "einsql.kernels.compiler.llvm_compiler" in sys.modules
"""
    environment = {**os.environ, "EINSQL_CACHE_DIR": str(home)}
    subprocess.run([sys.executable, "-W", "error", "-c", text], env=environment, check=True)
    assert list(used().glob("k_*.kernel"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs the list of children")
def test_a_compiler_process_that_was_killed_is_started_again(home: Path) -> None:
    text = f"""
import os, signal
{CHILD}
everyone = [int(c) for task in os.listdir("/proc/self/task")
            for c in open(f"/proc/self/task/{{task}}/children").read().split()]
for child in everyone:
    os.kill(child, signal.SIGKILL)
compile_cache.load({SOURCE!r}.replace("0.5", "0.25"))
print(len(everyone))
"""
    environment = {**os.environ, "EINSQL_CACHE_DIR": str(home)}
    run = subprocess.run(
        [sys.executable, "-c", text], env=environment, check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == ["1", "1"]
    assert len(list(used().glob("k_*.kernel"))) == 2


def test_a_statement_leaves_while_a_kernel_compiles(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LeftError(Exception):
        pass

    def tick(done: float) -> None:
        raise LeftError

    monkeypatch.setattr(compile_cache, "_PATIENCE", 0.0)
    before = compile_cache.compilations()
    with pytest.raises(LeftError):
        compile_cache.load(SOURCE, tick)
    kernel = compile_cache.load(SOURCE)  # what had begun is not begun again
    assert compile_cache.load(SOURCE, tick) is kernel
    assert compile_cache.compilations() == before + 1
