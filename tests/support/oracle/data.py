"""Random databases: tensors of small extents, mostly of exactly representable values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from einsql.core.bfloat16 import narrow, rounded
from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import Column, Relation

NAMES = ("i", "j", "k", "l", "m")
NUMPY = {
    "BOOLEAN": np.bool_, "TINYINT": np.int8, "INTEGER": np.int32, "BIGINT": np.int64,
    "HALF": np.float16, "BFLOAT16": np.float32, "FLOAT": np.float32, "DOUBLE": np.float64,
}  # fmt: skip
SHORT = ("HALF", "BFLOAT16")
"""Types that compute as FLOAT, which is how DuckDB has their values."""
MOST_ELEMENTS = 120
APART = 65_536
"""The distance of the keys of tensors with large bounds; its square passes 32 bits."""

FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{0}": lambda array: array,
    "np.asfortranarray({0})": np.asfortranarray,
    "np.repeat({0}, 2, 0)[::2]": lambda array: np.repeat(array, 2, 0)[::2],
    "{0}[::-1].copy()[::-1]": lambda array: array[::-1].copy()[::-1],
    "{0}.astype({0}.dtype.newbyteorder())": lambda array: array.astype(array.dtype.newbyteorder()),
    "{0}.astype('int16')": lambda array: array.astype(np.int16),
    "{0}.astype('uint8')": lambda array: array.astype(np.uint8),
    "{0}.astype('uint32')": lambda array: array.astype(np.uint32),
    "{0}.astype('uint64')": lambda array: array.astype(np.uint64),
}
"""Ways to hand an array to einsql that keep its values and its type in SQL."""


@dataclass
class Tensor:
    """A registered array.

    Attributes:
        dtype: einsql's name of its type; BFLOAT16 is float32 here.
        form: How einsql gets it, one of `FORMS`.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    array: np.ndarray
    form: str = "{0}"

    @property
    def given(self) -> np.ndarray:
        """The array as einsql gets it."""
        return narrow(self.array) if self.dtype == "BFLOAT16" else FORMS[self.form](self.array)

    @property
    def literal(self) -> str:
        """What einsql gets as Python text."""
        values = [_literal(v) for v in self.array.ravel().tolist()]
        kind = np.dtype(self.array.dtype).name
        text = f"np.array([{', '.join(values)}], np.{kind}).reshape({self.array.shape})"
        if self.dtype == "BFLOAT16":
            return f"einsql.core.bfloat16.narrow({text})"
        return self.form.format(text)


@dataclass
class Database:
    """Tensors, statements that derive more of them, and what the generator may know.

    Attributes:
        statements: CREATE TENSOR statements, run after the arrays are registered.
        relations: Every table of the database as the generator sees it.
        tags: Lines of the semantics table that the data alone make possible.
        macros: Names of macros that add 1 to their argument.
        may_be_wide: Whether sparse tensors may have large bounds.
        has_wide: Whether a sparse tensor has large bounds.
    """

    float_math: str
    tensors: list[Tensor] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    macros: list[str] = field(default_factory=list)
    may_be_wide: bool = False
    has_wide: bool = False


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
    "TINYINT": Pool((1, 0, 127, -128, 64, -1), 2.0**7, 0),
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
    if dtype in ("TINYINT", "INTEGER", "BIGINT"):
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


def random_database(c: Choices, may_be_wide: bool = False) -> Database:
    """A database of one to four arrays and up to two tensors derived from them."""
    db = Database(float_math="double" if c.chance(50) else "float", may_be_wide=may_be_wide)
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
             (1, "TINYINT"), (1, "HALF"), (1, "BFLOAT16")]
        )  # fmt: skip
        pool = _pool(c, dtype)
        array = _array(c, shape, dtype, pool)
        tensor = Tensor(f"t{n}", dims, dtype, array, _form(c, dtype, array, pool))
        db.tensors.append(tensor)
        db.relations.append(_relation(tensor, pool))
        if dtype in SHORT:
            db.tags.add("ours")
    for n in range(c.below(3)):
        _derive(c, db, f"d{n}")
    if c.chance(20):
        _add_macros(c, db)
    return db


def _form(c: Choices, dtype: str, array: np.ndarray, pool: Pool) -> str:
    """How einsql gets an array; types without a sign only where no value has one."""
    if not c.chance(25) or not array.ndim or dtype == "BFLOAT16":
        return "{0}"
    forms = list(FORMS)[1:5]
    if pool in (_INDEX, _SMALL) and dtype == "INTEGER":
        forms += ["{0}.astype('int16')", *(["{0}.astype('uint8')"] if pool is _INDEX else [])]
    if pool is _INDEX and dtype == "BIGINT":
        forms += ["{0}.astype('uint32')", "{0}.astype('uint64')"]
    return c.pick(forms)


def _add_macros(c: Choices, db: Database) -> None:
    """A macro with a parameter named like a key, and a table macro."""
    db.macros.append("shifted")
    db.statements.append("CREATE MACRO shifted(i) AS i + 1")
    r = c.pick(db.relations)
    columns = ", ".join(column.name for column in r.columns)
    db.statements.append(f"CREATE MACRO m0() AS TABLE SELECT {columns} FROM {r.sql}")
    db.relations.append(replace(r, sql="m0()", oracle="m0()"))


def _extent(c: Choices, usual: int) -> int:
    if c.below(100) == 99:
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
    storage = "STORAGE SPARSE " if keys and c.chance(40) else ""
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
        where = c.pick(conditions)
        if keys and c.chance(20) and db.may_be_wide:
            _derive_apart(db, name, t, relation, where)
            return
        text = f"SELECT {names}{comma}val FROM {t.name} WHERE {where}"
        columns = [*keys, value]
    db.statements.append(f"CREATE TENSOR {name} {storage}AS {text}")
    db.relations.append(Relation(name, name, columns, rows=relation.rows, unique=True))


def _derive_apart(db: Database, name: str, t: Tensor, relation: Relation, where: str) -> None:
    """Adds a sparse tensor whose first key has values that lie apart."""
    db.has_wide = True
    first, *others = relation.keys
    lo, hi = first.bounds or (0, 0)
    end = APART * (hi - 1) + 1 if hi else 0
    first = replace(first, magnitude=first.magnitude * APART, bounds=(lo, end))
    keys = [first, *others]
    dims = ", ".join(f"{k.name} DIM({k.bounds[1]})" for k in keys if k.bounds)
    values = ", ".join([f"{first.name} * {APART}", *(k.name for k in others), "val"])
    db.statements += [
        f"CREATE TENSOR {name} ({dims}, val {t.dtype}) STORAGE SPARSE",
        f"INSERT INTO {name} SELECT {values} FROM {t.name} WHERE {where}",
    ]
    columns = [*keys, relation.columns[-1]]
    db.relations.append(Relation(name, name, columns, rows=relation.rows, unique=True))
