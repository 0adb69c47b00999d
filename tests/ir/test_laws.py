"""Laws of sites against sites that are simulated key by key, and runs against the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np
import pytest

from einsql import tra
from einsql.core.schema import DType
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.einsum.graph import Call, Const, Expr, Label
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Scan,
    Shuffle,
)
from einsql.ir.ia.typing import Tiled
from einsql.ir.layout import Entry, Layout, Mesh, Replicate, Scattered, Shard
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import KeyTuple, equal_cuts, over_keys
from einsql.ir.tra.kernels import VALUE, Tile
from tests.support.relations import by_reference
from tests.support.samples import sample
from tests.support.sites import on_sites

Origin = frozenset[object]
"""The stored arrays that an array was computed from."""
Stores = dict[int, dict[KeyTuple, set[Origin]]]
"""For each site the arrays under each key."""

MATRIX = Tile(2, DType.DOUBLE)
ADD, MUL = (k.template([MATRIX, MATRIX]) for k in (tra.add, tra.mul))
HALVED = tra.map(lambda v: v * 0.5).template([MATRIX])
SHAPES = ((2, 2), (4, 2), (4, 4), (1, 4), (3, 2), (5, 1))


@dataclass
class Placed:
    """A relation at sites, the same without sites, and its simulated sites."""

    node: Node
    relation: ra.Node
    stores: Stores


def sites_of(layout: Layout, key: KeyTuple, bounds: tuple[int, ...]) -> list[int]:
    """The sites of a key, by the definition of a layout."""
    shape, allowed = layout.mesh.shape, []
    for n, entry in enumerate(layout.placed):
        if isinstance(entry, Replicate):
            allowed.append(range(shape[n]))
            continue
        assert isinstance(entry, Shard)
        axes = [
            (e.depth, m)
            for m, e in enumerate(layout.placed)
            if isinstance(e, Shard) and (e.axis, e.cyclic) == (entry.axis, entry.cyclic)
        ]
        total = int(np.prod([shape[m] for _, m in axes]))
        value, bound = key[entry.axis], bounds[entry.axis]
        piece, digits = value % total if entry.cyclic else value * total // bound, {}
        for _, m in sorted(axes, reverse=True):
            piece, digits[m] = divmod(piece, shape[m])
        allowed.append(range(digits[n], digits[n] + 1))
    points = layout.mesh.points.reshape(shape)
    return [int(points[at]) for at in product(*allowed)]


def moved(source: Stores, layout: Layout, bounds: tuple[int, ...]) -> Stores:
    """Every array at the sites of its key."""
    stores: Stores = {site: {} for site in source}
    for arrays in source.values():
        for key, origins in arrays.items():
            for site in sites_of(layout, key, bounds):
                stores[site].setdefault(key, set()).update(origins)
    return stores


def locally(
    source: Stores, new: Callable[[KeyTuple], Iterable[KeyTuple]], merge: bool = False
) -> Stores:
    """The arrays of each site under new keys; merged arrays have the origins of all members."""
    stores: Stores = {site: {} for site in source}
    for site, arrays in source.items():
        for key, origins in arrays.items():
            for after in new(key):
                known = stores[site].setdefault(after, set())
                if merge:
                    whole = frozenset().union(*known, *origins)
                    known.clear()
                    known.add(whole)
                else:
                    known |= {frozenset((o, after)) for o in origins}
    return stores


def expected_holders(stores: Stores) -> dict[KeyTuple, Counter[tuple[int, ...]]]:
    """For each key the sites of the copies of each part."""
    copies: dict[tuple[KeyTuple, Origin], list[int]] = {}
    for site, arrays in sorted(stores.items()):
        for key, origins in arrays.items():
            for origin in origins:
                copies.setdefault((key, origin), []).append(site)
    found: dict[KeyTuple, Counter[tuple[int, ...]]] = {}
    for (key, _), sites in copies.items():
        found.setdefault(key, Counter())[tuple(sites)] += 1
    return dict(sorted(found.items()))


def holders(node: Node) -> dict[KeyTuple, Counter[tuple[int, ...]]]:
    """The same by the type."""
    schema = node.schema
    return {
        key: Counter(tuple(copies) for copies in parts if copies[0] >= 0)
        for key, parts in zip(schema.blocks.each_key(), schema.holders.tolist(), strict=True)
    }


# ---- random plans


class Plans:
    """Random plans over sites with the arrays that they scan."""

    def __init__(self, seed: int) -> None:
        self.pick = Random(seed)
        self.sites = self.pick.randint(1, 6)
        self.arrays: dict[str, np.ndarray] = {}
        self.refused = 0

    def mesh(self) -> Mesh:
        shape: list[int] = []
        while self.pick.random() < 0.8 and np.prod(shape, initial=2) <= self.sites:
            shape.append(self.pick.randint(2, self.sites // int(np.prod(shape))))
        count = int(np.prod(shape))
        own = self.pick.sample(range(self.sites), count) if self.pick.random() < 0.3 else None
        return Mesh.of(shape, own)

    def layout(self, mesh: Mesh) -> Layout:
        entries: list[Entry] = []
        for _ in mesh.axes:
            shard = Shard(self.pick.randrange(2), self.pick.randrange(2), self.pick.random() < 0.6)
            entries.append(shard if self.pick.random() < 0.7 else Replicate())
        return Layout(mesh, tuple(entries))

    def scan(self, layout: Layout | None = None) -> Placed:
        parts = self.pick.choice(SHAPES)
        name = f"x{len(self.arrays)}"
        rows, columns = 2 * parts[0], parts[1]
        values = [[self.pick.randint(-2, 2) / 2 for _ in range(columns)] for _ in range(rows)]
        self.arrays[name] = array = np.array(values)
        plan = tra.scan(self.arrays[name], parts, name=name).plan
        assert isinstance(plan, ra.Scan)
        layout = layout or self.layout(self.mesh())
        stores: Stores = {site: {} for site in range(self.sites)}
        for key in np.ndindex(*parts):
            for site in sites_of(layout, key, parts):
                stores[site][key] = {frozenset([(name, key)])}
        return Placed(
            Scan(plan.tensor, equal_cuts("Scan", array.shape, parts), layout, self.sites),
            plan,
            stores,
        )

    def step(self, x: Placed, known: list[Placed]) -> Placed:
        """The relation after a random operation.

        Raises:
            IntegrityError: The operation does not fit the sites or the keys.
            ProgrammingError: The operation does not fit the relation.
        """
        bounds = x.node.schema.blocks.bounds
        keys = range(len(bounds))
        node: Node
        some = tuple(k for k in keys if self.pick.random() < 0.5)
        if x.node.schema.merge and self.pick.random() < 0.3:
            return self.join(x, x)
        match self.pick.choice(
            ("bcast", "shuffle", "filter", "map", "rekey", "tile", "sum", "sum", "stack")
            + ("join",) * 4
        ):
            case "bcast" | "shuffle" as kind:
                move = Bcast(x.node) if kind == "bcast" else Shuffle(x.node, some)
                return Placed(move, x.relation, moved(x.stores, move.schema.layout, bounds))
            case "filter":
                condition = self.condition(len(bounds))
                stores = locally(x.stores, lambda k: [k] if at(condition, k) else [])
                relation = ra.Filter(x.relation, condition)
                return Placed(LocalFilter(x.node, condition), relation, stores)
            case "map":
                node = LocalMap(x.node, kernels=(HALVED,))
                return Placed(node, ra.Transform(x.relation, HALVED), x.stores)
            case "rekey":
                to = self.keys(bounds)
                stores = locally(x.stores, lambda k: [tuple(at(e, k) for e in to)])
                return Placed(LocalMap(x.node, to), ra.ReKey(x.relation, to), stores)
            case "tile":
                shape = x.node.schema.blocks.shape
                stores = locally(x.stores, lambda k: [(*k, n) for n in range(shape(k)[0])])
                node = LocalMap(x.node, emit=Tiled(0, 1))
                return Placed(node, ra.Tile(x.relation, 0, 1), stores)
            case "sum":
                stores = locally(x.stores, lambda k: [tuple(k[g] for g in some)], merge=True)
                node = LocalAggregate(x.node, some, "sum")
                return Placed(node, ra.Aggregate(x.relation, some, "sum"), stores)
            case "stack":
                node = LocalStack(x.node, len(bounds) - 1, 0)
                stores = locally(x.stores, lambda k: [k[:-1]], merge=True)
                count = Counter(k[:-1] for k in x.node.schema.blocks.each_key())
                for arrays in stores.values():  # a site may have some of a group only
                    for k in [k for k, (o,) in arrays.items() if len(o) < count[k]]:
                        del arrays[k]
                return Placed(node, ra.Stack(x.relation, len(bounds) - 1, 0), stores)
        layout = x.node.schema.layout
        by_keys = all(isinstance(e, Replicate) or is_first(e) for e in layout.placed)
        beside = self.scan(
            layout if by_keys and self.pick.random() < 0.5 else self.layout(layout.mesh)
        )
        return self.join(x, self.pick.choice([*known, x, beside]))

    def join(self, x: Placed, y: Placed) -> Placed:
        bounds, others = (p.node.schema.blocks.bounds for p in (x, y))
        places, free = [], len(bounds)
        for bound in others:
            same = [k for k, b in enumerate(bounds) if b == bound and k not in places]
            if same and self.pick.random() < 0.8:
                places.append(self.pick.choice(same))
            else:
                places.append(free)
                free += 1
        numbers = (tuple(range(len(bounds))), tuple(places))
        kernel = self.pick.choice((ADD, MUL))
        relation = ra.Join((x.relation, y.relation), numbers, kernel)
        stores: Stores = {}
        for site in x.stores:
            stores[site] = {}
            for (a, of_a), (b, of_b) in product(x.stores[site].items(), y.stores[site].items()):
                key = dict(enumerate(a))
                if all(key.setdefault(p, k) == k for p, k in zip(places, b, strict=True)):
                    both: set[Origin] = {frozenset([(o, p)]) for o, p in product(of_a, of_b)}
                    stores[site][tuple(key[n] for n in range(free))] = both
        complete = {k for own in stores.values() for k in own} == set(relation.schema.each_key())
        try:
            node = LocalJoin((x.node, y.node), numbers, (kernel,))
        except IntegrityError:
            schemas = x.node.schema, y.node.schema
            merged = all(s.merge is None for s in schemas)
            one_mesh = schemas[0].layout.mesh == schemas[1].layout.mesh
            assert not (complete and merged and one_mesh), "refused without a reason"
            self.refused += 1
            raise
        assert complete
        return Placed(node, relation, stores)

    def condition(self, keys: int) -> Expr:
        a, b = (Label(f"k{self.pick.randrange(keys)}") for _ in range(2)) if keys else (ONE, ONE)
        return Call(self.pick.choice(("le", "eq", "le")), (a, b if a != b else ONE), DType.BOOLEAN)

    def keys(self, bounds: tuple[int, ...]) -> tuple[Expr, ...]:
        order: list[Expr] = [Label(f"k{k}") for k in range(len(bounds))]
        self.pick.shuffle(order)
        if len(order) > 1 and self.pick.random() < 0.5:
            first, second, *rest = order
            times = Const(max(bounds), DType.BIGINT)
            scaled = Call("mul", (first, times), DType.BIGINT)
            order = [Call("add", (scaled, second), DType.BIGINT), *rest]
        return tuple(order)


def is_first(entry: Entry) -> bool:
    """True for a shard of one of the keys of a stored matrix."""
    return isinstance(entry, Shard) and entry.axis < 2


ONE = Const(1, DType.BIGINT)


def at(expr: Expr, key: KeyTuple) -> int:
    return int(over_keys(expr, np.array([key], np.int64).reshape(1, len(key)))[0])


@pytest.mark.parametrize("part", sample([3], range(4)))
def test_laws_give_the_sites_of_every_array(part: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(part * 100, part * 100 + sample(20, 100)):
        plans = Plans(seed)
        known = [plans.scan()]
        for _ in range(plans.pick.randint(2, 8)):
            try:
                new = plans.step(known[-1], known)
            except (IntegrityError, ProgrammingError):
                continue
            if not 0 < new.node.schema.blocks.count <= 80:
                continue
            assert holders(new.node) == expected_holders(new.stores), seed
            done[type(new.node).__name__] += 1
            done["joined parts"] += (
                isinstance(new.node, LocalJoin) and new.node.schema.merge == "sum"
            )
            done["parts"] += new.node.schema.merge is not None
            known.append(new)
        last = known[-1]
        done["refused"] += plans.refused
        wanted = by_reference(tra.Relation(last.relation, plans.arrays))
        got = on_sites(last.node, plans.arrays)
        assert list(got) == sorted(wanted)
        for key, array in got.items():
            np.testing.assert_allclose(array, wanted[key][VALUE], rtol=1e-12, err_msg=str(seed))
    assert all(done[kind] >= 3 for kind in KINDS), done


KINDS = (
    *("Bcast", "Shuffle", "LocalFilter", "LocalMap", "LocalJoin", "LocalAggregate", "LocalStack"),
    *("parts", "joined parts", "refused"),
)


# ---- laws that do not compose


def scanned(name: str, layout: Layout) -> Node:
    plan = tra.scan(np.arange(16.0).reshape(4, 4), (4, 4), name=name).plan
    assert isinstance(plan, ra.Scan)
    return Scan(plan.tensor, plan.cuts, layout, 4)


def test_shards_of_one_key_by_two_operands_are_no_digits() -> None:
    mesh, shard = Mesh.of((2, 2)), Shard(0, cyclic=True)
    x = scanned("x", Layout(mesh, (shard, Replicate())))
    y = scanned("y", Layout(mesh, (Replicate(), shard)))
    both = LocalJoin((x, y), ((0, 1), (0, 1)), (ADD,)).schema
    rows = both.holders.reshape(4, 4)
    assert rows[:, 0].tolist() == [0, 3, 0, 3]  # the digits of the key would be 0, 1, 2, 3
    first, second = both.layout.placed
    assert (first, isinstance(second, Scattered)) == (shard, True)


def test_parts_are_joined_where_all_operands_have_them() -> None:
    columns = scanned("x", Layout(Mesh.of((4,)), (Shard(1, cyclic=True),)))
    triangle = LocalFilter(columns, Call("le", (Label("k1"), Label("k0")), DType.BOOLEAN))
    rows, fewer = (LocalAggregate(x, (0,), "sum") for x in (columns, triangle))
    twice = LocalJoin((fewer, LocalMap(fewer)), ((0,), (0,)), (ADD,)).schema
    assert twice.holders.tolist() == fewer.schema.holders.tolist()
    with pytest.raises(IntegrityError, match="part of one operand only"):
        LocalJoin((rows, fewer), ((0,), (0,)), (ADD,))


def test_contiguous_pieces_depend_on_the_bound() -> None:
    blocks = scanned("x", Layout(Mesh.of((2,)), (Shard(0),)))
    first = LocalFilter(blocks, Call("le", (Label("k0"), ONE), DType.BOOLEAN))
    renamed = LocalMap(first, (Label("k1"), Label("k0"))).schema
    assert renamed.blocks.bounds == (4, 2)
    assert renamed.holders.reshape(-1).tolist() == [0] * 8
