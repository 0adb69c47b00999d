"""A PostgreSQL server of its own, in a temporary directory and on a socket there."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.evaluation import peers
from benchmarks.evaluation.experiment import Array

SETTINGS = {
    "shared_buffers": "2GB", "work_mem": "1GB", "maintenance_work_mem": "512MB",
    "max_parallel_workers_per_gather": "2", "max_parallel_workers": "2", "jit": "on",
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off",
    "min_parallel_table_scan_size": "0", "parallel_setup_cost": "100", "random_page_cost": "1.1",
    "listen_addresses": "''",
}  # fmt: skip
"""As the manual's chapter on resource consumption advises for one client and data in memory."""

STARTING = 60.0
"""Seconds that the server may take to answer."""


def connected(tables: Mapping[str, Array], keys: Mapping[str, tuple[str, ...]]) -> Any:
    """A connection whose server has each array as a table of its elements.

    Args:
        tables: Arrays by name.
        keys: Names of their axes; the values are the column `val`.
    """
    import numpy as np
    import psycopg

    host = str(_server())
    end = time.monotonic() + STARTING
    while True:
        try:
            con = psycopg.connect(host=host, dbname="postgres", user="postgres", autocommit=True)
            break
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    for name, array in tables.items():
        columns = ", ".join(f"{k} INT" for k in keys[name])
        con.execute(f"CREATE UNLOGGED TABLE {name} ({columns}, val REAL)")
        places = [axis.reshape(-1).tolist() for axis in np.indices(array.shape)]
        with con.cursor().copy(f"COPY {name} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4"] * array.ndim + ["float4"])
            for row in zip(*places, array.reshape(-1).tolist(), strict=True):
                copy.write_row(row)
        con.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(keys[name])})")
        con.execute(f"VACUUM ANALYZE {name}")
    return con


def _server() -> Path:
    """Starts a server, which ends with this process; the directory of its socket."""
    programs = peers.postgres()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="einsql-postgres-"))
    account = None
    if os.geteuid() == 0:  # the server refuses to run as root
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
    user, group = (None, None) if account is None else (account.pw_uid, account.pw_gid)

    def run(*command: str) -> None:
        subprocess.run(
            [str(programs / command[0]), *command[1:]],
            check=True, cwd=folder, stdout=subprocess.DEVNULL, user=user, group=group,
        )  # fmt: skip

    data = folder / "data"
    run("initdb", "--pgdata", str(data), "--username=postgres", "--auth=trust", "--no-sync")
    options = [f"{name} = {value}" for name, value in SETTINGS.items()]
    options.append(f"unix_socket_directories = '{folder}'")
    with (data / "postgresql.conf").open("a") as file:
        file.write("\n".join(options) + "\n")
    server = subprocess.Popen(
        [str(programs / "postgres"), "-D", str(data)],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, group=group,
    )  # fmt: skip

    def end() -> None:
        server.terminate()
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder
