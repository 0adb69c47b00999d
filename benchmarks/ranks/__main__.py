"""Sites on MPI ranks beside other systems: `python -m benchmarks.ranks [--record] [NAME …]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.ranks import harness, sections
from benchmarks.ranks.peers import BOUND, EINSQL, PEERS, SUMMA
from benchmarks.ranks.traffic import planned

PARTS = ("square", "skewed", "speedup", "traffic")
RANKS = (2, 4)
SITES = 8
ROUNDS, REPEATS = 5, 3
SPEEDUPS = (EINSQL, SUMMA, BOUND)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ranks", description="einsql on MPI ranks beside other systems."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="how many, for chains")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each system")
    parser.add_argument("--folder", type=Path, help="keep inputs and the ways found fastest here")
    parser.add_argument("--record", action="store_true", help=f"write {report.DOCUMENT.name} too")
    options = parser.parse_args()
    names = options.names or list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"there is no {unknown.pop()}; there are {', '.join(PARTS)}")
    part = set(names) != set(PARTS) or set(options.peers) != set(PEERS)
    if options.record and (part or tuple(options.ranks) != RANKS):
        parser.error("--record needs all parts, ranks and systems, for it replaces the section")
    with tempfile.TemporaryDirectory(prefix="einsql-ranks-") as temporary:
        root = options.folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        found = [s for name in names for s in _part(name, options, root)]
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text(found))
    if options.record:
        print(f"\nWritten to {report.record(found, 'ranks')}")
        from benchmarks import plots  # matplotlib is needed for this alone

        plots.main()
    return 0


def _part(name: str, options: argparse.Namespace, root: Path) -> list[report.Section]:
    if name == "traffic":
        return [sections.traffic(SITES, planned("skewed", SITES))]
    if name == "speedup":
        return [_speedup(options, root)]
    return [_chain(name, ranks, options, root) for ranks in options.ranks]


def _chain(name: str, ranks: int, options: argparse.Namespace, root: Path) -> report.Section:
    peers = {n: PEERS[n] for n in options.peers}
    jobs, absent = harness.ready(
        peers, partial(harness.tuned, workload=name, ranks=ranks, root=root)
    )
    taken, failed = harness.in_turns(jobs, options.rounds, REPEATS, root)
    return sections.beside_each_other(name, ranks, jobs, taken, absent + failed)


def _speedup(options: argparse.Namespace, root: Path) -> report.Section:
    names = {n: (f"{n} on 1", f"{n} on 2") for n in SPEEDUPS if n in options.peers}
    jobs: dict[str, harness.Job] = {}
    absent: list[str] = []
    for ranks in (1, 2):
        peers = {keys[ranks - 1]: PEERS[name] for name, keys in names.items()}
        tuned = partial(harness.tuned, workload="matmul", ranks=ranks, root=root)
        found, lacking = harness.ready(peers, tuned)
        jobs |= found
        absent += lacking
    taken, failed = harness.in_turns(jobs, options.rounds, REPEATS, root)
    return sections.speedup("matmul", names, taken, absent + failed)


if __name__ == "__main__":
    sys.exit(main())
