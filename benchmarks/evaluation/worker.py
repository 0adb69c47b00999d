"""A process of a contestant: `python -m benchmarks.evaluation.worker EXPERIMENT NAME CASE …`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Contestant, Experiment, Task, World, digest
from benchmarks.evaluation.protocol import serve

PACKAGES = (
    "einsql", "numpy", "scipy", "torch", "dask", "distributed", "jax", "opt_einsum", "cotengra",
    "duckdb", "mpi4py", "psycopg",
)  # fmt: skip

EXPERIMENTS = "benchmarks.evaluation.experiments"


class Alone:
    """One process."""

    rank = 0

    def share(self, text: str) -> str:
        return text

    def barrier(self) -> None:
        pass

    def total(self, values: Array) -> Array:
        return values


class Mpi:
    """The processes of MPI's world."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD
        self.rank: int = self.comm.rank

    def share(self, text: str) -> str:
        shared: str = self.comm.bcast(text)
        return shared

    def barrier(self) -> None:
        self.comm.Barrier()

    def total(self, values: Array) -> Array:
        summed: Array = self.comm.allreduce(values)
        return summed


class Gloo:
    """The processes that torchrun started, with a thread each."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.dist, self.torch = dist, torch
        self.rank = dist.get_rank()

    def share(self, text: str) -> str:
        shared = [text]
        self.dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def barrier(self) -> None:
        self.dist.barrier()

    def total(self, values: Array) -> Array:
        tensor = self.torch.from_numpy(np.array(values, np.float64))
        self.dist.all_reduce(tensor)
        summed: Array = tensor.numpy()
        return summed


WORLDS: Mapping[str, type[Alone] | type[Mpi] | type[Gloo]] = {
    "alone": Alone,
    "mpi": Mpi,
    "torchrun": Gloo,
}


def experiment(name: str) -> Experiment:
    """An experiment by the name of its file, or by the name of a module elsewhere."""
    module = importlib.import_module(name if "." in name else f"{EXPERIMENTS}.{name}")
    found: Experiment = module.EXPERIMENT
    return found


def contestant(of: Experiment, name: str) -> Contestant:
    """A contestant by its name."""
    return next(c for c in of.contestants if c.name == name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation.worker")
    parser.add_argument("experiment")
    parser.add_argument("contestant")
    parser.add_argument("case")
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", nargs="?", default="")
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    of = experiment(asked.experiment)
    by = contestant(of, asked.contestant)
    assert by.prepare is not None
    world: World = WORLDS[by.launch]()
    case = next(c for c in of.cases(asked.full) if c.name == asked.case)
    ready = by.prepare(Task(case, asked.folder, asked.way, world))

    def answer(result: Any) -> dict[str, Any]:
        found = ready.answer(result)
        told = {"checksum": found} if isinstance(found, float) else {"answer": digest(found)}
        return {**told, "versions": versions(), **ready.details()}

    serve(
        ready.run,
        answer,
        share=world.share,
        barrier=world.barrier,
        between=ready.between,
        first=world.rank == 0,
    )
    sys.stdout.flush()
    if by.launch == "torchrun":
        world.barrier()
        os._exit(0)  # gloo's threads now and then abort a process that waits for them


def versions() -> dict[str, str]:
    """The versions of packages that are loaded here."""
    found = {}
    for name in PACKAGES:
        if name in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = str(getattr(sys.modules[name], "__version__", "of this checkout"))
    return found


if __name__ == "__main__":
    main()
