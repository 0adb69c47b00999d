"""Plans on virtual sites for tests: random ones, and what every run has to keep."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np

from einsql import tra
from einsql.engine.block_program import gathered
from einsql.engine.exchange import Held
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Measure
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.ia import plan as ia
from einsql.ir.ia.interpreter import evaluate_physical
from einsql.ir.layout import Replicate, Shard
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.kernels import compile_node
from einsql.optimizer.lowering.program import BlockPlan, lowered
from tests.support.relations import by_reference

Blocks = dict[KeyTuple, np.ndarray]
Arrays = Mapping[str, np.ndarray]


def meaning(relation: tra.Relation) -> Blocks:
    """What a relation means, by definition."""
    return {key: record[VALUE] for key, record in sorted(by_reference(relation).items())}


def on_sites(plan: ia.Node, arrays: Arrays) -> Blocks:
    """Runs a plan on its sites: every site has what its type says, as by definition."""
    made = lowered(plan)
    tiles, measure = _run(made, arrays)
    assert sorted(_copies(made)) == sorted(
        (*key, part, site)
        for key, parts in zip(plan.schema.blocks.each_key(), plan.schema.holders, strict=True)
        for part, copies in enumerate(parts.tolist())
        for site in copies
        if site >= 0
    )
    for n, (*key, _, _) in enumerate(_copies(made)):
        wanted, array = plan.schema.blocks, tiles[n][VALUE]
        assert (array.shape, array.dtype) == (wanted.shape(tuple(key)), wanted.dtype.numpy)
    assert sum(measure.sent) == sum(measure.received) == ia.bytes_sent(plan)
    assert made.program.bytes_sent == ia.bytes_sent(plan)
    for node in ia.walk(plan):
        lies_as_told(node)
    blocks = gathered(made, tiles)
    by_definition = evaluate_physical(plan, {n: {VALUE: array} for n, array in arrays.items()})
    assert_same(blocks, {key: record[VALUE] for key, record in sorted(by_definition.items())})
    return blocks


def _run(plan: BlockPlan, arrays: Arrays) -> tuple[Held, Measure]:
    program = SiteProgram(plan.program, lambda node: compile_node(node, "never"))
    inputs = {name: {VALUE: array} for name, array in arrays.items()}
    (tiles,), measure = program.run_virtually(inputs, lambda _: None)
    return tiles, measure


def _copies(plan: BlockPlan) -> list[tuple[int, ...]]:
    """Key, part and site of every tile of the result."""
    tiles = plan.program.steps[plan.program.roots[0]].tiles
    keys = tiles.boxes[:, : tiles.keyed, 0].tolist()
    parts = [0] if tiles.keyed == plan.keys else []
    return [(*k, *parts, s) for k, s in zip(keys, tiles.sites.tolist(), strict=True)]


def any_copies(plan: ia.Node, arrays: Arrays) -> Blocks:
    """What somebody finds who takes the first array under a key that any site holds."""
    made = lowered(plan)
    tiles, _ = _run(made, arrays)
    found: dict[KeyTuple, tuple[int, np.ndarray]] = {}
    for n, (*key, _, site) in enumerate(_copies(made)):
        if site <= found.get(tuple(key), (site, None))[0]:
            found[tuple(key)] = site, tiles[n][VALUE]
    return {key: array for key, (_, array) in sorted(found.items())}


def lies_as_told(node: ia.Node) -> None:
    """The holders follow the entries of the layout, axis by axis."""
    schema, layout = node.schema, node.schema.layout
    assert schema.merge is not None or schema.holders.shape[1] == 1
    shards = [e for e in layout.placed if isinstance(e, Shard)]
    alone = [e for e in shards if [s.axis for s in shards].count(e.axis) == 1]
    point = {site: n for n, site in enumerate(layout.mesh.points.tolist())}
    for key, parts in zip(schema.blocks.each_key(), schema.holders.tolist(), strict=True):
        for copies in parts:
            if copies[0] < 0:
                continue
            at = [np.unravel_index(point[s], layout.mesh.shape) for s in copies]
            for n, (entry, size) in enumerate(zip(layout.placed, layout.mesh.shape, strict=True)):
                coordinates = {int(c[n]) for c in at}
                assert len(coordinates) == (size if isinstance(entry, Replicate) else 1)
                if isinstance(entry, Shard) and entry.cyclic and entry in alone:
                    assert coordinates == {key[entry.axis] % size}


def assert_same(got: Blocks, wanted: Blocks) -> None:
    """Data are small dyadic rationals, so results are exact in any order."""
    assert list(got) == list(wanted)
    for key, array in wanted.items():
        np.testing.assert_array_equal(got[key], array)


# ---- random relations


def random_relation(pick: Random) -> tra.Relation:
    """A few operations on one or two matrices in blocks; steps that do not fit are left out."""
    made = [_matrix(pick, name) for name in "xy"]
    for _ in range(pick.randint(1, 5)):
        try:
            step = _step(made[-1], made, pick)
        except (ProgrammingError, IntegrityError):
            continue
        if 0 < step.schema.count <= 60:
            made.append(step)
    return made[-1]


def _matrix(pick: Random, name: str) -> tra.Relation:
    rows, columns = pick.choice(((2, 2), (3, 2), (2, 4), (4, 4), (1, 5), (6, 3)))
    shape = (4, 4) if pick.random() < 0.7 else (6, 6)
    parts = min(rows, shape[0]), min(columns, shape[1])
    values = [[pick.randint(-8, 8) / 4 for _ in range(shape[1])] for _ in range(shape[0])]
    return tra.scan(np.array(values), parts, name=name)


def _step(x: tra.Relation, made: list[tra.Relation], pick: Random) -> tra.Relation:
    keys, rank = len(x.schema.bounds), len(x.schema.dims)
    some = [k for k in range(keys) if pick.random() < 0.5]
    n = pick.randrange(3)
    ops = ["add", "add", "aggregate", "rekey", "transform", "transform", "repartition"]
    if keys > 0:
        ops += ["filter", "filter"]
    if keys > 0 and rank > 0:
        ops += ["tile", "stack"]
    if keys > 1:
        ops += ["product", "sum of products", "number", "diagonal"]
    op = pick.choice(ops)
    if op in ("product", "sum of products"):
        joined = x.join(pick.choice(made), (1,), (0,), tra.matmul)
        return joined.aggregate(pick.choice([(0, 2), (1,)])) if op[0] == "s" else joined
    if op == "add":
        return x.join(pick.choice(made), range(keys), range(keys), pick.choice([tra.add, tra.mul]))
    if op == "aggregate":
        return x.aggregate(some, pick.choice(["add", "min", "max"]))
    if op == "rekey":
        order = pick.sample(range(keys), keys)
        return x.rekey(lambda *k: tuple(k[s] for s in order))
    if op == "number":
        bound = x.schema.bounds[1]
        return x.rekey(lambda *k: (k[0] * bound + k[1], *k[2:]))
    if op == "filter":
        a, b = pick.randrange(keys), pick.randrange(keys)
        return x.filter(lambda *k: (k[a] == k[b]) if a != b else (k[a] % 2 == n % 2))
    if op == "diagonal":
        diagonal = x.filter(lambda *k: k[0] == k[1]).rekey(lambda *k: (k[0], *k[2:]))
        return diagonal.transform(tra.diag)
    if op == "transform":
        return x.transform(
            pick.choice(
                [
                    tra.map(lambda v: v * 0.5),
                    tra.map(lambda v: v + 1),
                    tra.einsum("ij->ji"),
                    tra.einsum("...i->..."),
                    tra.diag,
                ]
            )
        )
    if op == "tile":
        return x.tile(pick.randrange(rank), pick.randint(1, 2))
    if op == "stack":
        return x.stack(keys - 1, pick.randrange(rank))
    return x.repartition([pick.randint(1, 3) for _ in range(rank)])
