"""`einsql.tra`: tensor-relational plans written by hand, run by the same kernels as SQL.

>>> import numpy as np
>>> from einsql import tra
>>> a = tra.scan(np.arange(16.0).reshape(4, 4), parts=(2, 2))
>>> product = a.join(a, (1,), (0,), tra.matmul).aggregate((0, 2), tra.add)
>>> product.numpy()[0]
array([56., 62., 68., 74.])
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.records import cached_property
from einsql.core.schema import DType, Schema
from einsql.engine.block_program import BlockExecutor, Blocks
from einsql.errors import InterfaceError, ProgrammingError
from einsql.ir.einsum.graph import Expr, Input, cast
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import BlockSchema, KeyTuple, equal_cuts, key_label
from einsql.ir.tra.kernels import VALUE, Kernel, Tile, aggregate_of, einsum, elementwise
from einsql.ir.tra.lambda_tracing import call, recorded, trace
from einsql.ir.tra.printer import format_plan
from einsql.kernels.kernel import no_progress
from einsql.planner.tile_plan import block_executor
from einsql.storage.block_relation import assemble
from einsql.storage.host_arrays import array_relation, is_sparse

if TYPE_CHECKING:
    from einsql.planner.placed_tra import Placed
    from einsql.session.connection import Connection

__all__ = [
    "Kernel",
    "Relation",
    "add",
    "call",
    "diag",
    "einsum",
    "map",
    "matmul",
    "mul",
    "scan",
    "sub",
]

matmul = einsum("ij,jk->ik")
add = elementwise("add")
sub = elementwise("sub")
mul = elementwise("mul")
diag = einsum("ii->i")


Combine = str | Callable[..., object]


def map(function: Combine) -> Kernel:
    """Returns the kernel that applies a function to every element, or to pairs of elements.

    Args:
        function: A scalar function's name, or a Python function with one argument for each
            operand. The Python function is called once, to trace it. It may use operators,
            NumPy's functions and `tra.call`.
    """
    return elementwise(function)


def scan(
    array: object,
    parts: Sequence[int] | None = None,
    *,
    cuts: Sequence[Sequence[int]] | None = None,
    name: str = "x",
) -> Relation:
    """Returns a tensor relation over an array, without a copy; key i cuts axis i.

    Args:
        array: A NumPy array, or any operand that einsql.einsum accepts.
        parts: The number of blocks along each axis; their sizes differ by at most one.
        cuts: Instead of `parts`, the offsets of the blocks along each axis, from 0 to the extent.
        name: The array's name in plans.

    Raises:
        InterfaceError: The argument is no array of a tensor type.
        ProgrammingError: The cuts do not fit the array's axes.
    """
    relation = array_relation(array, fill=0 if is_sparse(array) else None)
    tensor = Input(name, Schema(relation.schema.keys, relation.schema.fields))
    shape = relation.schema.shape
    if cuts is None:
        split = (1,) * len(shape) if parts is None else _integers("Scan", parts)
        node = ra.Scan(tensor, equal_cuts("Scan", shape, split))
    elif parts is None:
        node = ra.Scan(tensor, tuple(_integers("Scan", c) for c in cuts))
    else:
        raise ProgrammingError("scan takes parts or cuts, not both")
    return Relation(node, {name: relation.fields[VALUE]})


class Relation:
    """A tensor relation: a plan and the arrays it reads. Every operation returns a new relation.

    Attributes:
        plan: The plan, in the language of `einsql.ir.tra.plan`.
        arrays: The arrays of the plan's scans, by name.
    """

    def __init__(self, plan: ra.Node, arrays: Mapping[str, np.ndarray]) -> None:
        self.plan = plan
        self.arrays = dict(arrays)

    @property
    def schema(self) -> BlockSchema:
        """The relation's keys and the shapes of its arrays."""
        return self.plan.schema

    def join(
        self,
        other: Relation,
        left_keys: Sequence[int],
        right_keys: Sequence[int],
        kernel: Kernel | Combine,
    ) -> Relation:
        """⋈: joins rows whose keys are equal, and applies a kernel to their arrays.

        Args:
            other: The right operand.
            left_keys: The joined key dimensions of this relation.
            right_keys: The key dimensions of the right operand, in the same order.
            kernel: A kernel of two arrays, or a function of two elements as in `tra.map`.

        Returns:
            The relation whose keys are this relation's, then the right operand's unjoined keys.

        Raises:
            InterfaceError: The right operand is no relation.
            ProgrammingError: Joined keys have different bounds, or the kernel does not fit.
        """
        if not isinstance(other, Relation):
            raise InterfaceError(
                f"join takes a relation, not a {type(other).__name__}", hint="tra.scan makes one."
            )
        other = other._apart(self)
        pairs = _integers("Join", left_keys), _integers("Join", right_keys)
        keys = ra.natural_keys(self.schema, other.schema, *pairs)
        template = _kernel(kernel).template([_tile(self.schema), _tile(other.schema)])
        joined = ra.Join((self.plan, other.plan), keys, template)
        return Relation(joined, self.arrays | other.arrays)

    def aggregate(self, keys: Sequence[int], op: str | Kernel = "sum") -> Relation:
        """Σ: groups by `keys`, which are the result's keys, and merges the arrays of a group.

        Args:
            keys: Key dimensions to group by.
            op: "sum", "product", "min", "max", "bool_or" or "bool_and", or the merge
                function, as "add" or tra.add. The arrays keep their type.

        Raises:
            ProgrammingError: A key or the operation does not exist, or shapes differ.
        """
        name = op.combine if isinstance(op, Kernel) and op.notation is None else op
        reduce = aggregate_of(name if isinstance(name, str) else "a kernel", "Aggregate")
        return self._with(ra.Aggregate(self.plan, _integers("Aggregate", keys), reduce))

    def rekey(self, function: Callable[..., object]) -> Relation:
        """ReKey: replaces the keys by a function of the old keys.

        Args:
            function: A function from the key's components to an integer or a tuple of integers.

        Raises:
            IntegrityError: Two rows get the same key, or a new key is negative.
        """
        traced = self._traced("ReKey", function)
        items = traced if isinstance(traced, tuple | list) else (traced,)
        keys = tuple(_integer(recorded(k, "ReKey")) for k in items)
        return self._with(ra.ReKey(self.plan, keys))

    def filter(self, function: Callable[..., object]) -> Relation:
        """σ: selects the rows whose keys satisfy a condition.

        Args:
            function: A condition on the key's components; comparisons are combined with &, | and ~.
        """
        condition = recorded(self._traced("Filter", function), "Filter")
        return self._with(ra.Filter(self.plan, condition))

    def transform(self, kernel: Kernel | Combine) -> Relation:
        """λ: applies a kernel, or a function of one element as in `tra.map`, to every array.

        Raises:
            ProgrammingError: The kernel does not fit.
        """
        template = _kernel(kernel).template([_tile(self.schema)])
        return self._with(ra.Transform(self.plan, template))

    def tile(self, dim: int, size: int) -> Relation:
        """Tile: cuts the arrays along a dimension; the new key is the last one."""
        return self._with(ra.Tile(self.plan, *_integers("Tile", (dim, size))))

    def stack(self, key: int, dim: int) -> Relation:
        """Stack: concatenates arrays that differ in one key along a dimension."""
        return self._with(ra.Stack(self.plan, *_integers("Stack", (key, dim))))

    def repartition(self, parts: Sequence[int]) -> Relation:
        """Π: cuts the same tensor into other numbers of blocks.

        Raises:
            IntegrityError: Keys are missing.
            ProgrammingError: Key i does not cut axis i, or a block would be empty.
        """
        return self._with(ra.repartition(self.plan, _integers("Repartition", parts)))

    def place(
        self,
        sites: int,
        *,
        connection: Connection | None = None,
        stored: Mapping[str, Sequence[int] | None] | None = None,
        disabled: str | Iterable[str] = (),
        alpha: float = 1.0,
        beta: float = 0.001,
    ) -> Placed:
        """Places the plan on sites, by the cheapest rewrites of the implementation algebra.

        Args:
            sites: The number of sites.
            connection: The connection whose MPI ranks run the sites, evenly distributed.
                Without a connection or ranks, the sites are virtual ones in this process.
            stored: The sharding keys of scanned tensors by name; None is a copy at every
                site. Other tensors are distributed over the sites by all keys.
            disabled: The names of rules to disable, as in "R2-5, RMM" or ["R2-5", "RMM"].
            alpha: The cost of moving a float.
            beta: The cost of a scalar operation.

        Raises:
            ProgrammingError: The number of sites is invalid, or a tensor or a key does not exist.
            InterfaceError: A rule does not exist.
        """
        from einsql.optimizer.tra import Weights
        from einsql.planner.placed_tra import placed

        (count,) = _integers("place", (sites,))
        where = {
            name: None if keys is None else _integers("place", keys)
            for name, keys in (stored or {}).items()
        }
        off = disabled.split(",") if isinstance(disabled, str) else disabled
        names = frozenset(name.strip() for name in off if name.strip())
        cluster = None if connection is None else connection.cluster
        return placed(self.plan, self.arrays, count, where, names, Weights(alpha, beta), cluster)

    def blocks(self) -> dict[KeyTuple, np.ndarray]:
        """Runs the plan and returns the arrays by key. Views of scanned arrays are read-only.

        BFLOAT16 elements are returned as float32.

        Raises:
            DataError: An element overflows, divides by zero or cannot be cast.
        """
        dtype = self.schema.dtype
        return {key: loaded(array, dtype) for key, array in self._run().items()}

    def numpy(self) -> np.ndarray:
        """Runs the plan and returns a new array of all blocks, with key i along axis i.

        Raises:
            IntegrityError: Keys are missing.
            ProgrammingError: Key i does not cut axis i.
        """
        return loaded(assemble(self.plan, self._run()), self.schema.dtype)

    def __str__(self) -> str:
        return format_plan(self.plan)

    @cached_property
    def _executor(self) -> BlockExecutor:
        return block_executor(self.plan)

    def _run(self) -> Blocks:
        inputs = {name: {VALUE: array} for name, array in self.arrays.items()}
        return self._executor.run(inputs, no_progress)

    def _with(self, plan: ra.Node) -> Relation:
        return Relation(plan, self.arrays)

    def _traced(self, what: str, function: Callable[..., object]) -> object:
        bounds = {key_label(n).name: (0, b) for n, b in enumerate(self.schema.bounds)}
        labels = [key_label(n) for n in range(len(self.schema.bounds))]
        traced: object = trace(function, labels, bounds, what)
        return traced

    def _apart(self, other: Relation) -> Relation:
        """Renames the arrays of the relation whose names have another meaning in `other`."""
        names: dict[str, str] = {}
        for name, array in self.arrays.items():
            new, n = name, 0
            while new in other.arrays and other.arrays[new] is not array:
                n += 1
                new = f"{name}_{n}"
            names[name] = new

        def visit(node: ra.Node) -> ra.Node:
            if not isinstance(node, ra.Scan) or names[node.tensor.name] == node.tensor.name:
                return node
            return ra.Scan(replace(node.tensor, name=names[node.tensor.name]), node.cuts)

        arrays = {names[name]: array for name, array in self.arrays.items()}
        return Relation(ra.transform(self.plan, visit), arrays)


def _kernel(kernel: Kernel | Combine) -> Kernel:
    return kernel if isinstance(kernel, Kernel) else elementwise(kernel)


def _integers(what: str, values: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(v) for v in values)
    except TypeError as error:
        raise ProgrammingError(f"{what} numbers dimensions and parts: {error}") from error


def _tile(schema: BlockSchema) -> Tile:
    return Tile(len(schema.dims), schema.dtype)


def _integer(expr: Expr) -> Expr:
    return cast(expr, DType.BIGINT) if expr.dtype.is_integer else expr
