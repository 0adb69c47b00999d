"""Random databases: tensors of small extents, mostly of exactly representable values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from einsql.core.bfloat16 import narrow, rounded
from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import Column, Relation

NAMES = ("i", "j", "k", "l", "m")
NUMPY = {
    "BOOLEAN": np.bool_, "INTEGER": np.int32, "BIGINT": np.int64,
    "HALF": np.float16, "BFLOAT16": np.float32, "FLOAT": np.float32, "DOUBLE": np.float64,
}  # fmt: skip
SHORT = ("HALF", "BFLOAT16")
"""Types that compute as FLOAT, which is how DuckDB has their values."""
MOST_ELEMENTS = 120


@dataclass
class Tensor:
    """A registered array; `dtype` is einsql's name of its type, BFLOAT16 is float32 here."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    array: np.ndarray

    @property
    def given(self) -> np.ndarray:
        """The array as einsql gets it."""
        return narrow(self.array) if self.dtype == "BFLOAT16" else self.array

    @property
    def literal(self) -> str:
        """What einsql gets as Python text."""
        values = [_literal(v) for v in self.array.ravel().tolist()]
        kind = np.dtype(self.array.dtype).name
        text = f"np.array([{', '.join(values)}], np.{kind}).reshape({self.array.shape})"
        return f"einsql.core.bfloat16.narrow({text})" if self.dtype == "BFLOAT16" else text


@dataclass
class Database:
    """Tensors, statements that derive more of them, and what the generator may know.

    Attributes:
        statements: CREATE TENSOR statements, run after the arrays are registered.
        relations: Every table of the database as the generator sees it.
        tags: Lines of the semantics table that the data alone make possible.
    """

    float_math: str
    tensors: list[Tensor] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)


def _literal(value: bool | int | float) -> str:
    return (
        f"float({str(value)!r})"
        if isinstance(value, float) and not math.isfinite(value)
        else (repr(value))
    )


@dataclass(frozen=True)
class Pool:
    """Values an array is drawn from, the simplest first, and the bounds they obey."""

    values: tuple[bool | int | float, ...]
    magnitude: float
    bits: int | None
    special: bool = False


_DYADIC = Pool((1.0, 0.0, 0.5, -1.0, 2.0, -0.25, 1.5, 0.75, -2.0), 2.0, 2)
_SPECIAL = Pool((1.0, 0.0, math.nan, math.inf, -math.inf, -0.0, 0.5, -1.0), 1.0, 1, special=True)
_GENERAL = Pool((1.0, 0.1, 0.3, -0.7, 1.234567, -2.718, 3.3e-3, 1e-2, 2.2), 3.0, None)
_SMALL = Pool((1, 0, 2, -1, 3, 4, -3, 6), 6, 0)
_INDEX = Pool((0, 1, 2, 3, 4, 5), 5, 0)
_BITS = Pool((True, False), 1, 0)
_EXTREME = {
    "INTEGER": Pool((1, 0, 2**31 - 1, -(2**31), 2**30, -1), 2.0**31, 0),
    "BIGINT": Pool((1, 0, 2**63 - 1, -(2**63), 2**53 + 1, -1), 2.0**63, 0),
    "HALF": Pool((1.0, 0.0, 65504.0, -65504.0, 2.0**-24), 65504.0, 24),
    "BFLOAT16": Pool((1.0, 0.0, 3.3895313892515355e38, -3.3895313892515355e38, 2.0**-133,
                      2.0**-126), 3.4e38, None),
    "FLOAT": Pool((1.0, 0.0, 3.4028234663852886e38, -3.4028234663852886e38, 2.0**-149,
                   2.0**-126), 3.5e38, None),
    "DOUBLE": Pool((1.0, 0.0, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324), 1.8e308,
                   None),
}  # fmt: skip


def _pool(c: Choices, dtype: str) -> Pool:
    if dtype == "BOOLEAN":
        return _BITS
    extreme = _EXTREME[dtype]
    if dtype in ("INTEGER", "BIGINT"):
        return c.weighted([(5, _INDEX), (5, _SMALL), (1, extreme)])
    return c.weighted([(14, _DYADIC), (2, _GENERAL), (3, _SPECIAL), (2, extreme)])


def _relation(t: Tensor, pool: Pool) -> Relation:
    dtype = "FLOAT" if t.dtype in SHORT else t.dtype
    # -0.0 in every pool of floats is harmless, except that SPECIAL really holds it.
    keys = [
        Column(n, "BIGINT", float(max(0, e - 1)), 0, bounds=(0, e))
        for n, e in zip(t.dims, t.array.shape, strict=True)
    ]
    value = Column("val", dtype, pool.magnitude, pool.bits, special=pool.special, leaf=True)
    return Relation(t.name, t.name, [*keys, value], rows=max(1, t.array.size), unique=True)


def _array(c: Choices, shape: tuple[int, ...], dtype: str, pool: Pool) -> np.ndarray:
    values = [c.pick(pool.values) for _ in range(math.prod(shape))]
    array: np.ndarray = np.array(values, dtype=NUMPY[dtype]).reshape(shape)
    return rounded(array) if dtype == "BFLOAT16" else array


def random_database(c: Choices) -> Database:
    """A database of one to four arrays and up to two tensors derived from them."""
    db = Database(float_math="double" if c.chance(50) else "float")
    extents = {n: c.weighted([(4, 2), (4, 3), (3, 4), (2, 1), (2, 5), (1, 7)]) for n in NAMES}
    for n in range(c.between(1, 4)):
        if n and c.chance(25):  # a partner of the same keys
            dims = db.tensors[-1].dims
        else:
            rank = c.weighted([(7, 2), (5, 1), (4, 3), (1, 0), (1, 4), (1, 5)])
            left = list(NAMES)
            dims = tuple(left.pop(c.below(len(left) if c.chance(40) else 1)) for _ in range(rank))
        shape = tuple(_extent(c, extents[d]) for d in dims)
        while math.prod(shape) > MOST_ELEMENTS:
            shape = tuple(max(1, e - 1) for e in shape)
        dtype = c.weighted(
            [(6, "FLOAT"), (6, "DOUBLE"), (4, "INTEGER"), (2, "BIGINT"), (2, "BOOLEAN"),
             (1, "HALF"), (1, "BFLOAT16")]
        )  # fmt: skip
        pool = _pool(c, dtype)
        tensor = Tensor(f"t{n}", dims, dtype, _array(c, shape, dtype, pool))
        db.tensors.append(tensor)
        db.relations.append(_relation(tensor, pool))
        if dtype in SHORT:
            db.tags.add("ours")
    for n in range(c.below(3)):
        _derive(c, db, f"d{n}")
    return db


def _extent(c: Choices, usual: int) -> int:
    if c.below(200) == 199:
        return 0
    return max(1, usual + c.pick([-1, 1, 2])) if c.chance(12) else usual


def _derive(c: Choices, db: Database, name: str) -> None:
    """Adds a tensor with absent keys, or one with two value columns."""
    source = c.below(len(db.tensors))
    t, relation = db.tensors[source], db.relations[source]
    partners = [
        r
        for o, r in zip(db.tensors, db.relations, strict=False)
        if o is not t and set(o.dims) == set(t.dims)
    ]
    *keys, value = relation.columns
    names = ", ".join(k.name for k in keys)
    comma = ", " if keys else ""
    if partners and keys and c.chance(60):
        other = c.pick(partners)
        text = (
            f"SELECT {names}, {t.name}.val AS a, {other.sql}.val AS b "
            f"FROM {t.name} JOIN {other.sql} USING ({names})"
        )
        columns = [*keys, value.renamed("a"), other.columns[-1].renamed("b")]
    else:
        conditions = ["val" if value.dtype == "BOOLEAN" else "val > 0"]
        if keys:
            conditions.append(f"{keys[0].name} % 2 = 0")
        if len(keys) > 1:
            conditions.append(f"{keys[0].name} <= {keys[1].name}")
        text = f"SELECT {names}{comma}val FROM {t.name} WHERE {c.pick(conditions)}"
        columns = [*keys, value]
    storage = "STORAGE SPARSE " if len(keys) == 2 and c.chance(50) else ""
    db.statements.append(f"CREATE TENSOR {name} {storage}AS {text}")
    db.relations.append(Relation(name, name, columns, rows=relation.rows, unique=True))
