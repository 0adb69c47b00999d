"""A ring of MPI ranks against complete keys at every rank, and against parts merged by a tree.

`python -m benchmarks.ring [RANKS …]` runs causal attention over one sequence, whose queries, keys
and values are stored by rows at the ranks. For each plan it prints the resident memory that a run
adds at the fullest rank, beside the bytes that the engine counts and predicts, the bytes sent, the
operations of the ranks, and the processor time of the busiest rank.

`mpiexec -n 2 python -m benchmarks.ring overlap` posts an exchange of a block, works, and prints the
share of the block that has arrived when the work ends, with and without polling between the pieces
of the work. The buffer of the receiver is filled with NaN before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import einsql

HEADS, LENGTH, WIDTH = 1, 16384, 64
"""The shape of queries, keys and values: 4 MiB each."""
MIB = 2**20
RUNS = 3
"""The number of timed runs of each plan."""
PLANS = {"ring": "RING(e.t={n})", "rows": "PARTITION(e.s={n})", "tree": "PARTITION(e.t={n})"}


def attention(hint: str) -> str:
    """Causal attention as a statement that leaves its result at the ranks."""
    return f"""
        CREATE OR REPLACE TENSOR o AS
        WITH x AS (SELECT q.h, q.s, k.t, SUM(q.val * k.val) / 8 AS val
            FROM q JOIN k ON q.h = k.h AND q.d = k.d WHERE k.t <= q.s GROUP BY q.h, q.s, k.t),
          m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
          e AS (SELECT x.h, x.s, x.t, EXP(x.val - m.val) AS val
            FROM x JOIN m ON x.h = m.h AND x.s = m.s),
          z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s)
        SELECT /*+ {hint} */ e.h, e.s, v.d, SUM(e.val / z.val * v.val) AS val
        FROM e JOIN z ON e.h = z.h AND e.s = z.s JOIN v ON v.h = e.h AND v.t = e.t
        GROUP BY e.h, e.s, v.d"""


def measured(ranks: int, hint: str) -> dict[str, Any]:
    """The memory, work and traffic of a plan on ranks of its own."""
    chance = np.random.default_rng(1)
    with einsql.connect(config={"mpi": ranks, "jit": "wait"}) as con:
        for name, key in (("q", "s"), ("k", "t"), ("v", "t")):
            given = chance.standard_normal((HEADS, LENGTH, WIDTH)).astype(np.float32)
            con.register("given", given, dims=("h", key, "d"))
            cut = f"PARTITION BY ({key} {ranks})"
            con.execute(f"CREATE TENSOR {name} {cut} AS SELECT * FROM given")
        pids, sql = _ranks(), attention(hint)
        before = [_memory(pid, "VmRSS") for pid in pids]
        con.execute(sql)
        added = [_memory(pid, "VmHWM") - b for pid, b in zip(pids, before, strict=True)]
        seconds, elapsed = [], []
        for _ in range(RUNS):
            used, start = [_processor(pid) for pid in pids], perf_counter()
            con.execute(sql)
            elapsed.append(perf_counter() - start)
            seconds.append([_processor(p) - u for p, u in zip(pids, used, strict=True)])
        select = sql.split(" AS\n", 1)[1]
        rows = con.execute("EXPLAIN (ANALYZE, FORMAT json) " + select).fetchall()
    plan = json.loads(rows[0][0])
    sites = plan["per_site"]
    return {
        "resident": max(added),
        "counted": max(s["memory_measured"] for s in sites),
        "predicted": plan["total"]["memory"],
        "flops": [s["flops"] for s in sites],
        "sent": sum(s["bytes_sent"] for s in sites),
        "planned": plan["total"]["bytes_sent"],
        "busiest": median(map(max, seconds)),
        "elapsed": median(elapsed),
    }


def _ranks() -> list[int]:
    """The processes of the ranks that this process has started."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            parents[int(status.parent.name)] = int(lines["PPid"])
    own, pids = {os.getpid()}, []
    for pid in sorted(parents):
        if parents[pid] in own:
            own.add(pid)
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"python" in command.split(b"\0")[0] and b"einsql" in command:
                pids.append(pid)
    return pids


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (x for x in lines if x.startswith(name))
    return int(line.split()[1]) * 1024


def _processor(pid: int) -> float:
    """The processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attentions(ranks: int) -> None:
    """Prints the measures of each plan on so many ranks."""
    blocks = 2 * HEADS * LENGTH * WIDTH * 4 / ranks
    print(f"{ranks} ranks, keys and values of a rank {blocks / MIB:.2f} MiB", flush=True)
    for name, hint in PLANS.items():
        m = measured(ranks, hint.format(n=ranks))
        print(
            f"  {name:5} resident +{m['resident'] / MIB:.1f} MiB, counted "
            f"{m['counted'] / MIB:.1f}, predicted {m['predicted'] / MIB:.1f}; sent {m['sent']:,} "
            f"of {m['planned']:,} planned; flops max/min {max(m['flops']) / min(m['flops']):.3f}; "
            f"busiest rank {m['busiest']:.2f} s of processor, elapsed {m['elapsed']:.2f} s",
            flush=True,
        )


def overlap() -> None:
    """Prints the share of a posted exchange that arrives during work."""
    from mpi4py import MPI

    from einsql.engine.mpi_transport import RankTransport
    from einsql.engine.transport import Routes

    comm = MPI.COMM_WORLD
    sites = np.arange(comm.size)
    block: dict[str, np.ndarray] = {}
    room: dict[str, np.ndarray] = {}
    for size in (2**16, 2**20, 2**24):
        shapes, dtypes = np.full((comm.size, 1), size // 4), {"val": np.dtype(np.float32)}
        routes = Routes(sites, (sites - 1) % comm.size, shapes, dtypes, sites)
        block["val"] = np.ones(size // 4, np.float32)
        for polls in (False, True):
            arrived = []
            for _ in range(RUNS):
                room["val"] = np.full(size // 4, np.nan, np.float32)
                transport = RankTransport(comm, comm.size, lambda: False)
                posted = transport.post(routes, lambda _: block, lambda _: room)
                _work(posted.poll if polls else lambda: None)
                arrived.append(float(np.isfinite(room["val"]).mean()))
                list(posted.pieces())
            if comm.rank == 0:
                print(f"{size:>12,} bytes, polled: {polls!s:5}  arrived {median(arrived):.0%}")


def _work(poll: Callable[[], None]) -> None:
    """Some 50 ms of products, in pieces of a millisecond."""
    a = np.ones((256, 256), np.float32)
    end = perf_counter() + 0.05
    while perf_counter() < end:
        a @ a
        poll()


def main() -> int:
    """Runs the chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["2", "4"], help="numbers of ranks, or overlap")
    what = parser.parse_args().what
    if what == ["overlap"]:
        overlap()
        return 0
    for ranks in map(int, what):
        attentions(ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
