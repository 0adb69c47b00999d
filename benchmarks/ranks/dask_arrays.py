"""Dask's arrays on a local cluster of worker processes with one thread each.

The option says how every input is cut, in order: `2x1` is two blocks of rows and one of columns.
Blocks are dealt to the workers in turn, and dealt again before every repetition, for a worker
keeps what it fetched from others and would find all it needs the second time.
"""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster, wait

from benchmarks.ranks.protocol import Task, part, serve, task

Where = tuple[slice, slice]


def _load(file: Path, where: Where) -> np.ndarray:
    return np.array(np.load(file, mmap_mode="r")[where], order="C")


def _dealt(asked: Task, client: Client) -> dict[str, Any]:
    """The inputs, each block of them at one worker."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    turn = count()
    arrays, blocks = {}, []
    cuts = dict(zip(asked.workload.shapes, asked.option.split("_"), strict=True))
    for name, shape in asked.workload.shapes.items():
        rows, columns = (int(n) for n in cuts[name].split("x"))

        def block(name: str, where: Where) -> Any:
            worker = workers[next(turn) % len(workers)]
            file = asked.folder / f"{name}.npy"
            blocks.append(client.submit(_load, file, where, workers=worker, pure=False))
            extent = tuple(s.stop - s.start for s in where)
            return da.from_delayed(blocks[-1], extent, np.float32)

        arrays[name] = da.block(
            [
                [
                    block(name, (part(shape[0], rows, n), part(shape[1], columns, m)))
                    for m in range(columns)
                ]
                for n in range(rows)
            ]
        ).persist()
    wait(list(arrays.values()))
    return arrays


def main() -> None:
    asked = task()
    # Workers must not write results to disk or pause for memory while they are timed.
    dask.config.set({f"distributed.worker.memory.{k}": False for k in ("target", "spill", "pause")})
    with (
        LocalCluster(
            n_workers=asked.ranks,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        own: dict[str, Any] = {}
        kept: list[Any] = []

        def between() -> None:
            kept.clear()
            own.clear()
            while client.run_on_scheduler(_tasks):
                time.sleep(0.01)
            own.update(_dealt(asked, client))

        def run() -> None:
            result = own["a"] @ own["b"]
            if "c" in own:
                result = result + own["c"] @ (own["d"] @ own["e"])
            kept.append(result.persist())
            wait(kept)

        def check() -> float:
            left, right = (np.load(asked.folder / f"{side}.npy") for side in ("left", "right"))
            return float((left @ (kept[0].astype(np.float64) @ right)).compute())

        serve(run, check, between=between)


def _tasks(dask_scheduler: Any = None) -> int:
    return len(dask_scheduler.tasks)


if __name__ == "__main__":
    main()
