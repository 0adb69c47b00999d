"""Processes that are forked again and again, each at once ready to work on a database."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from contextlib import suppress

import einsql

_WORK = (
    "CREATE TABLE t AS SELECT 0 AS k",
    "CREATE TENSOR x (i DIM(4), val DOUBLE) DEFAULT 0",
    "BEGIN; UPDATE x SET val = 1; CREATE VIEW v AS SELECT SUM(val) AS s FROM x; COMMIT",
    "SELECT s, k FROM v, t",
    "COPY x TO '{folder}/x.npy'",
    "COPY x FROM '{folder}/x.npy'",
    "VACUUM",
)


def import_everything() -> None:
    """Imports what the work on a file imports when it is first done.

    A process that is forked does the work and says what it has imported: one that has opened a
    file has threads, and must not be forked.
    """
    reader, writer = os.pipe()
    if not os.fork():
        with (
            suppress(einsql.Error),
            tempfile.TemporaryDirectory() as folder,
            einsql.connect(f"{folder}/a.db", config={"jit": "never"}) as con,
        ):
            for statement in _WORK:
                con.execute(statement.format(folder=folder))
        os.write(writer, "\n".join(sys.modules).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as names:
        for name in names.read().split("\n"):
            with suppress(ImportError):
                importlib.import_module(name)
    os.wait()
