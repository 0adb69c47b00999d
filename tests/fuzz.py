"""The long run of random queries against DuckDB.

    python -m tests.fuzz --queries 20000 --seed 1 [--minutes M] [--processes 2]
    python -m tests.fuzz --queries 2000 --everywhere [--sample] [--parts 0-9]

    python -m tests.fuzz --queries 2000 --mpi 2,3,4
    python -m tests.fuzz --queries 2000 --memory 2KB

The second form runs each query on 1, 2, 3, 4, 5 and 8 virtual sites under every strategy. With
--sample it takes 1, 2, 3 and 5 sites, `eindecomp` and one other strategy. It prints the outcome
so far after every 50 queries, a part. The third form runs queries on 2, 3 and 4 MPI ranks, as
many in all; besides a quarter as many between changes of the tensors, and a tenth as many over
tiles. The last one cuts nearly every step into boxes.
Prints how many queries agreed, which lines of the semantics table they touched, and a
minimal script for each difference; the exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import warnings
from functools import partial

from einsql.engine.ranks.start import starting
from tests.support.oracle.campaign import Report, campaign
from tests.support.oracle.everywhere import Everywhere, everywhere
from tests.support.oracle.ranks import WatchedCluster, changing, tiled

PART = 50
"""Queries of one part of `--everywhere`, which have one seed."""


def main() -> int:
    """Runs the campaign and prints its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--jit", choices=("never", "always", "auto"), default="never")
    parser.add_argument("--sites", default="1")
    parser.add_argument("--strategy", default="eindecomp")
    parser.add_argument("--level", choices=("elements", "blocks"), default="elements")
    parser.add_argument("--duckdb-only", action="store_true", help="test the generator itself")
    parser.add_argument("--repros", type=int, default=20, help="differences to make minimal")
    parser.add_argument("--everywhere", action="store_true", help="on all sites and strategies")
    parser.add_argument("--sample", action="store_true", help="in two ways on each of four sites")
    parser.add_argument("--parts", default="", help="the parts to run of --everywhere, as 0-9")
    parser.add_argument("--memory", default="", help="memory_limit, such as 2KB: most is cut")
    parser.add_argument("--mpi", default="", help="numbers of ranks, as 2 or 2,3,4")
    args = parser.parse_args()
    warnings.simplefilter("error")
    start = time.monotonic()
    if args.mpi:
        failed = _on_ranks(args)
    else:
        failed = _everywhere(args) if args.everywhere else _compared(args)
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if failed else 0


def _everywhere(args: argparse.Namespace) -> bool:
    """Runs queries part by part; returns whether any way to run one differed."""
    count = -(-args.queries // PART)
    first, _, last = args.parts.partition("-")
    parts = range(int(first), int(last or first) + 1) if first else range(count)
    jobs = ((PART, args.seed * 1000 + n) for n in parts)
    run = partial(_part, sample=args.sample)
    total, start = Everywhere(), time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(args.processes, warnings.simplefilter, ("error",)) as pool:
        for done, outcome in enumerate(pool.imap_unordered(run, jobs), start=1):
            total.add(outcome)
            elapsed = time.monotonic() - start
            print(f"{done} of {len(parts)} parts, {elapsed:.0f} s: {total.text()}", flush=True)
    return bool(total.findings)


def _part(job: tuple[int, int], *, sample: bool) -> Everywhere:
    """Runs the queries of a seed."""
    return everywhere(*job, sample=sample)


def _on_ranks(args: argparse.Namespace) -> bool:
    """True if any query differed on ranks."""
    counts = [int(n) for n in args.mpi.split(",")]
    settings = {"jit": args.jit}
    total, others = Report(), list[str]()
    for n, ranks in enumerate(counts):
        share = (n + 1) * args.queries // len(counts) - n * args.queries // len(counts)
        seed = args.seed * 1000 + ranks
        cluster = WatchedCluster(starting(ranks))
        try:
            found = campaign(share, seed, args.minutes, True, settings, args.repros, cluster)
            others += changing(cluster, share // 4, seed, settings)
            others += tiled(cluster, share // 10, seed)
        finally:
            cluster.close()
        print(
            f"{ranks} ranks: {found.queries} queries, {share // 4} between changes, "
            f"{share // 10} over tiles; {cluster.runs} programs, {cluster.moved} moved data"
        )
        total.add(found)
    print("\n\n".join([*others, total.text()]))
    print(f"{len(others)} differences between changes and over tiles")
    return bool(total.findings or others)


def _compared(args: argparse.Namespace) -> bool:
    """True if any query differed."""
    share = -(-args.queries // args.processes)
    settings = {"jit": args.jit, "sites": args.sites, "strategy": args.strategy}
    if args.memory:
        settings["memory_limit"] = args.memory
    if args.level == "blocks":
        settings["level"] = args.level
    jobs = [
        (share, args.seed * 1000 + n, args.minutes, not args.duckdb_only, settings, args.repros)
        for n in range(args.processes)
    ]
    if args.processes == 1:
        reports = [campaign(*jobs[0])]
    else:
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(args.processes, warnings.simplefilter, ("error",)) as pool:
            reports = pool.starmap(campaign, jobs, chunksize=1)
    total = Report()
    for report in reports:
        total.add(report)
    print(total.text())
    return bool(total.findings)


if __name__ == "__main__":
    sys.exit(main())
