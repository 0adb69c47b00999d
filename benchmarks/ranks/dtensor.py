"""PyTorch's DTensor over gloo, a process each with one thread.

The option names how the matrices lie and what is done about the operands that a product needs
elsewhere:

- `rows`: everything by rows; right operands are gathered.
- `columns`: everything by columns; left operands are gathered.
- `sums`: A·B and C·(D·E) are left as partial sums, which one reduce-scatter completes.
- `inner-rows`, `inner-columns`: D·E is a partial sum, which is completed at every process or
  scattered by columns; the rest as above.
- `grid`: blocks on a mesh of two axes; operands are gathered along one axis each.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from benchmarks.ranks.protocol import Task, part, serve, task

ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)
BLOCKS = (Shard(0), Shard(1))

LAYOUTS: dict[str, tuple[Any, ...]] = {
    "rows": (ROWS, ROWS, ROWS, ROWS, ROWS),
    "columns": (COLUMNS, COLUMNS, COLUMNS, COLUMNS, COLUMNS),
    "sums": (COLUMNS, ROWS, COLUMNS, ROWS, ROWS),
    "inner-rows": (ROWS, ROWS, ROWS, COLUMNS, ROWS),
    "inner-columns": (COLUMNS, COLUMNS, COLUMNS, COLUMNS, ROWS),
    "grid": (BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS),
}
"""How A, B, C, D and E lie."""

NEEDED: dict[str, tuple[Any, Any]] = {
    "rows": (ROWS, WHOLE),
    "columns": (WHOLE, COLUMNS),
    "sums": (COLUMNS, ROWS),
    "grid": ((Shard(0), Replicate()), (Replicate(), Shard(1))),
}
"""Where a product wants its operands."""


def _mesh(option: str, ranks: int) -> DeviceMesh:
    if option != "grid":
        return init_device_mesh("cpu", (ranks,))
    rows = max(n for n in range(1, int(ranks**0.5) + 1) if ranks % n == 0)
    return init_device_mesh("cpu", (rows, ranks // rows))


def _input(asked: Task, name: str, mesh: DeviceMesh, placements: Any) -> DTensor:
    where = [slice(None), slice(None)]
    for axis, placement in enumerate(placements):
        length = asked.workload.shapes[name][placement.dim]
        where[placement.dim] = part(length, mesh.size(axis), mesh.get_local_rank(axis))
    return DTensor.from_local(torch.from_numpy(asked.load(name, *where)), mesh, placements)


def _product(
    a: DTensor, b: DTensor, needed: tuple[Any, Any], onto: DTensor | None = None
) -> DTensor:
    a, b = (x.redistribute(placements=p) for x, p in zip((a, b), needed, strict=True))
    result = a @ b if onto is None else torch.addmm(onto, a, b)
    return cast(DTensor, result)


def main() -> None:
    asked = task()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = _mesh(asked.option, asked.ranks)
    own = {
        name: _input(asked, name, mesh, placements)
        for name, placements in zip(asked.workload.shapes, LAYOUTS[asked.option], strict=False)
    }
    way = asked.option.removeprefix("inner-")
    needed, inner = NEEDED[way], way != asked.option
    kept: list[DTensor] = []

    def run() -> None:
        result = _product(own["a"], own["b"], needed)
        if "c" in own:
            if inner:
                de = _product(own["d"], own["e"], NEEDED["sums"])
            else:
                de = _product(own["d"], own["e"], NEEDED["rows"] if way == "sums" else needed)
            if way == "sums":
                result = cast(DTensor, result + _product(own["c"], de, needed))
            else:
                result = _product(own["c"], de, needed, result)
        if way == "sums":
            result = result.redistribute(placements=ROWS)
        kept.append(result)

    def check() -> float:
        found = torch.tensor(_checksum(asked, kept[0], mesh), dtype=torch.float64)
        dist.all_reduce(found)
        return float(found.item())

    def share(text: str) -> str:
        shared = [text]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    serve(
        run,
        check,
        share=share,
        barrier=dist.barrier,
        between=kept.clear,
        first=dist.get_rank() == 0,
    )
    sys.stdout.flush()
    dist.barrier()
    # gloo's threads abort a process now and then that waits for them to go.
    os._exit(0)


def _checksum(asked: Task, result: DTensor, mesh: DeviceMesh) -> float:
    start = [0, 0]
    for axis, placement in enumerate(result.placements):
        if not isinstance(placement, Shard):
            raise AssertionError(f"the result is left as {result.placements}")
        length = asked.workload.result[placement.dim]
        start[placement.dim] = part(length, mesh.size(axis), mesh.get_local_rank(axis)).start
    block: np.ndarray = result.to_local().numpy()
    return asked.checksum(block, *start)


if __name__ == "__main__":
    main()
