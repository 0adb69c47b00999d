"""Files of a database that are no regular files: refused at once, and never waited for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import einsql

MAKE = "CREATE TENSOR w (i DIM(4), val FLOAT) DEFAULT 1; CREATE TABLE t AS SELECT 1 AS a"
PARTS = ["m.db", "m.db.wal", "m.db.tensors/einsql", "m.db.tensors/w.*.arrow"]
KINDS = ["FIFO", "directory", "socket", "character device"]
READ = """
import os, sys, einsql
for folder in sys.argv[1:]:
    os.chdir(folder)
    try:
        einsql.connect("m.db").execute("SELECT SUM(val) FROM w").fetchall()
    except einsql.OperationalError as error:
        print(error.reason, flush=True)
"""


def replaced(path: Path, kind: str) -> None:
    """Puts something else in the place of a file, if there is one."""
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("socket")  # a socket's name is short
            os.replace("socket", path)
    else:
        path.symlink_to("/dev/zero")


def test_a_database_of_irregular_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sound, broken = tmp_path / "sound", dict[Path, tuple[Path, str]]()
    sound.mkdir()
    with einsql.connect(str(sound / "m.db")) as con:
        con.execute(MAKE)
    for part in PARTS:
        for kind in KINDS:
            folder = tmp_path / str(len(broken))
            shutil.copytree(sound, folder)
            path = next(iter(folder.glob(part)), folder / part)
            replaced(path, kind)
            broken[folder] = path, kind
    found = subprocess.run(  # a process that waits is killed
        [sys.executable, "-c", READ, *broken], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    lines = found.stdout.splitlines()
    assert len(lines) == len(broken)
    for line, (path, kind) in zip(lines, broken.values(), strict=True):
        assert path.name in line
        assert f"no regular file but a {kind}" in line
