"""Random aggregates with bounds of their error, from Σ|terms| as DuckDB sums them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tests.support.oracle.relations import RANGES, E, UnsoundError, fits, meet
from tests.support.oracle.scalars import FUNCTION_UNITS, MOST, TINY, UNIT, Scalars


@dataclass(frozen=True)
class Frame:
    """Where an aggregate is taken.

    Attributes:
        rows: Bound of the number of rows in a group.
        where: The FILTER condition, or None.
        over: An OVER clause, or an empty string.
        grouped: False where there may be no row at all.
    """

    rows: int
    where: E | None = None
    over: str = ""
    grouped: bool = True

    @property
    def suffix(self) -> str:
        """What follows the closing parenthesis."""
        where = f" FILTER (WHERE {self.where.sql})" if self.where else ""
        return where + self.over

    @property
    def empty(self) -> bool:
        """True where the aggregate may see no row."""
        return not self.grouped or self.where is not None

    def of(self, fn: str, inner: str) -> str:
        """An aggregate call over this frame."""
        return f"{fn}({inner}){self.suffix}"


class Aggregates:
    """Builds aggregate calls; the scalars say how FLOAT behaves and collect tags.

    Attributes:
        ties: Calls whose ties einsql settles are allowed.
    """

    ties = True

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.tags = scalars.tags

    def count(self, e: E | None, frame: Frame) -> E:
        """COUNT(*) or COUNT(e)."""
        made = E("", "BIGINT", float(frame.rows), 0)
        return self._call("count", "*" if e is None else "{0}", (e,) if e else (), made, frame)

    def count_if(self, e: E, frame: Frame) -> E:
        """COUNT_IF of a condition, NULL where none is TRUE or FALSE."""
        made = replace(self._like(e, frame), dtype="BIGINT", magnitude=float(frame.rows), bits=0)
        return self._call("count_if", "{0}", (e,), made, frame)

    def extreme(self, fn: str, e: E, frame: Frame) -> E:
        """MIN or MAX."""
        if e.special:
            self.tags.add("nan")
        error = frame.of("max", e.error) if e.error else ""
        return self._call(fn, "{0}", (e,), self._like(e, frame, error=error), frame)

    def logical(self, fn: str, e: E, frame: Frame) -> E:
        """BOOL_AND or BOOL_OR."""
        return self._call(fn, "{0}", (e,), self._like(e, frame), frame)

    def bitwise(self, fn: str, e: E, frame: Frame) -> E:
        """BIT_AND, BIT_OR or BIT_XOR of integers."""
        if e.dtype not in RANGES or e.magnitude >= RANGES[e.dtype]:
            raise UnsoundError
        magnitude = 2.0 ** math.ceil(math.log2(e.magnitude + 1))  # of -1 in the worst case
        like = replace(self._like(e, frame), magnitude=min(magnitude, RANGES[e.dtype]))
        return self._call(fn, "{0}", (e,), like, frame)

    def pick(self, fn: str, argument: E, e: E, frame: Frame) -> E:
        """ARG_MIN or ARG_MAX of an integer argument; einsql settles ties by the least."""
        if not self.ties or not e.exact or not argument.is_integer or "ORDER BY" in frame.over:
            raise UnsoundError  # DuckDB may run an ordered window, and chooses among ties
        self.tags.add("ties")
        if e.special:
            self.tags.add("nan")
        if argument.magnitude >= RANGES["BIGINT"]:
            raise UnsoundError
        made = self._call(fn, "{0}, {1}", (argument, e), self._like(argument, frame), frame)
        tie = f"({argument.oracle})::BIGINT"
        tie = tie if fn == "arg_min" else f"-({tie})"
        pair = f"{{'v': {e.oracle}, 'k': {tie}}}"
        if e.nullable:
            pair = f"CASE WHEN {e.oracle} IS NOT NULL THEN {pair} END"
        nullable = made.nullable or e.nullable  # NULL if every value is
        oracle = frame.of(fn, f"{argument.oracle}, {pair}")
        return replace(made, oracle=oracle, nullable=nullable, key=None)

    def quantile(self, fn: str, fraction: str, e: E, frame: Frame) -> E:
        """MEDIAN, QUANTILE_CONT or QUANTILE_DISC, which move by the greatest error at most."""
        chosen = fn == "quantile_disc"
        inner = f"{{0}}, {fraction}" if fraction else "{0}"
        error = frame.of("max", e.error) if e.error else ""
        if chosen:
            return self._call(fn, inner, (e,), self._like(e, frame, error=error), frame)
        self._meets(e)
        dtype = "FLOAT" if e.dtype == "FLOAT" else "DOUBLE"
        if e.is_integer and e.magnitude >= 2**53:
            raise UnsoundError
        carried = f"{error} + " if error else ""
        own = f"{8 * UNIT[dtype]!r} * {frame.of('max', e.size)} + {TINY[dtype]}"
        like = replace(self._like(e, frame, error=f"({carried}{own})"), dtype=dtype, bits=None)
        return self._call(fn, inner, (e,), like, frame)

    def best(self, fn: str, most: int, place: int, e: E, frame: Frame) -> E:
        """One of the best values, which moves by the greatest error at most."""
        if frame.over:
            raise UnsoundError
        if e.special:
            self.tags.add("nan")
        error = frame.of("max", e.error) if e.error else ""
        made = self._call(fn, f"{{0}}, {most}", (e,), self._like(e, frame, error=error), frame)
        sql, oracle = (f"({text})[{place}]" for text in (made.sql, made.oracle))
        return replace(made, sql=sql, oracle=oracle, nullable=True)

    def mode(self, e: E, frame: Frame) -> E:
        """MODE; einsql settles ties by the least value."""
        if not self.ties or not e.exact:
            raise UnsoundError
        self.tags.add("ties")
        made = self._call("mode", "{0}", (e,), self._like(e, frame), frame)
        return replace(made, oracle=f"mode_of({frame.of('list', e.oracle)})")

    def distinct(self, fn: str, e: E, frame: Frame) -> E:
        """COUNT, APPROX_COUNT_DISTINCT, SUM, MIN or MAX of distinct values."""
        if not e.exact:
            raise UnsoundError
        like = self._like(e, frame)
        if fn in ("count", "approx_count"):
            like = replace(like, dtype="BIGINT", magnitude=float(frame.rows), bits=0)
            like = replace(like, nullable=False, special=False)
            made = self._call("count", "DISTINCT {0}", (e,), like, frame)
            sql = made.sql
            if fn == "approx_count":  # einsql counts all
                sql = sql.replace("count(DISTINCT ", "approx_count_distinct(")
            return replace(made, sql=sql, nullable=False)
        if fn == "sum":
            total = self.total(e, frame)
            if total.raises:
                raise UnsoundError
            like = replace(total, sql="", oracle="")
        return self._call(fn, "DISTINCT {0}", (e,), like, frame)

    def total(self, e: E, frame: Frame) -> E:
        """SUM."""
        self._meets(e)
        magnitude = frame.rows * e.magnitude
        if e.dtype in RANGES:
            self.tags.add("int_sum")
            raises = magnitude >= RANGES["BIGINT"]
            if raises:
                if not self.scalars.may_raise:
                    raise UnsoundError
                self.tags.add("int_overflow")
            like = replace(
                self._like(e, frame), dtype="BIGINT", magnitude=magnitude, bits=0, raises=raises
            )
            return self._call("sum", "{0}", (e,), like, frame)
        dtype = self._float(e)
        if magnitude > MOST[dtype]:
            raise UnsoundError
        like = replace(self._like(e, frame), dtype=dtype, magnitude=magnitude)
        if e.exact and fits(magnitude, e.bits, dtype):
            return self._call("sum", "{0}", (e,), like, frame)
        error = self._sum_error(e, dtype, frame)
        return self._call("sum", "{0}", (e,), replace(like, bits=None, error=error), frame)

    def product(self, e: E, frame: Frame) -> E:
        """PRODUCT."""
        self._meets(e)
        dtype = self._float(e)
        if e.special and e.error:
            raise UnsoundError
        top = max(1.0, e.magnitude)
        if frame.rows * math.log2(top) > math.log2(MOST[dtype]):
            raise UnsoundError
        magnitude = top**frame.rows
        like = replace(self._like(e, frame), dtype=dtype, magnitude=magnitude)
        if e.exact and e.bits is not None and fits(magnitude, e.bits * frame.rows, dtype):
            return self._call(
                "product", "{0}", (e,), replace(like, bits=e.bits * frame.rows), frame
            )
        size = frame.of("product", e.size)
        wider = frame.of("product", f"({e.size} + {e.bound})")
        grown = f"exp({2 * UNIT[dtype]!r} * {frame.of('count', e.oracle)})"
        error = f"({wider} * {grown} - {size} + {TINY[dtype]})"
        return self._call("product", "{0}", (e,), replace(like, bits=None, error=error), frame)

    def mean(self, fn: str, e: E, frame: Frame) -> E:
        """AVG or MEAN: exact sums of integers, and DOUBLE ones of floats, rounded once."""
        self._meets(e)
        dtype = self._float(e)
        if frame.rows * e.magnitude > MOST["DOUBLE"]:
            raise UnsoundError
        error = f"({UNIT[dtype]!r} * abs({frame.of('avg', e.oracle)}) + {TINY[dtype]}"
        if e.is_float or e.error:
            total = self._sum_error(e, "DOUBLE", frame)
            error += f" + {total} / {frame.of('count', e.oracle)}"
        like = replace(self._like(e, frame, error=f"{error})"), dtype=dtype, bits=None)
        return self._call(fn, "{0}", (e,), like, frame)

    def spread(self, fn: str, e: E, frame: Frame) -> E:
        """A variance or standard deviation, allowed the error of Σx² - (Σx)²/n in DOUBLE."""
        self._meets(e)
        dtype, root = self._float(e), fn.startswith("std")
        squared = frame.rows * e.magnitude * e.magnitude
        if squared > MOST["DOUBLE" if root else dtype]:
            raise UnsoundError
        count = frame.of("count", e.oracle)
        units = f"{4 * UNIT['DOUBLE']!r} * ({count} + 4)"
        carried = f"4 * {frame.of('sum', f'({e.size} + {e.bound}) * {e.bound}')} + "
        squares = frame.of("sum", f"{e.size} * {e.size}")
        error = (
            f"(({carried if e.error else ''}{units} * {squares}) / greatest({count} - 1, 1)"
            f" + {TINY['DOUBLE']})"
        )
        if root:
            error = f"sqrt({error})"
        error = f"({error} + {UNIT[dtype]!r} * {frame.of(fn, e.oracle)} + {TINY[dtype]})"
        like = replace(self._like(e, frame, error=error), dtype=dtype, bits=None)
        sample = "pop" not in fn
        if sample:
            self.tags.add("no_rows")
        magnitude = math.sqrt(squared) if root else squared
        like = replace(like, magnitude=magnitude + 1, nullable=like.nullable or sample)
        return self._call(fn, "{0}", (e,), like, frame)

    def log_sum_exp(self, e: E, frame: Frame) -> E:
        """LOGSUMEXP, which the oracle's macro computes as LN(SUM(EXP(e)))."""
        self._meets(e)
        dtype = self._float(e)
        if frame.suffix or e.magnitude > 300 or e.is_integer:
            raise UnsoundError
        self.tags.add("ours")
        count = frame.of("count", e.oracle)
        value = frame.of("logsumexp", f"({e.oracle})::DOUBLE")
        carried = f"{frame.of('max', e.error)} + " if e.error else ""
        units = f"{FUNCTION_UNITS * UNIT[dtype]!r} * ({count} + abs({value}) + 1)"
        spread = f"{UNIT[dtype]!r} * {frame.of('max', e.size)}"
        error = f"({carried}{units} + {spread})"
        like = replace(self._like(e, frame, error=error), dtype=dtype, bits=None)
        like = replace(like, magnitude=e.magnitude + 50)
        return self._call("logsumexp", "{0}", (e,), like, frame)

    # ---- helpers ---------------------------------------------------------------------

    def _meets(self, e: E) -> None:
        if e.dtype not in ("TINYINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"):
            raise UnsoundError
        meet(e)

    def _float(self, e: E) -> str:
        if e.dtype != "FLOAT":
            return "DOUBLE"
        self.tags.add("float_math")
        return "FLOAT" if self.scalars.float_stays else "DOUBLE"

    def _sum_error(self, e: E, dtype: str, frame: Frame) -> str:
        count, sizes = frame.of("count", e.oracle), frame.of("sum", e.size)
        own = f"{UNIT[dtype]!r} * ({count} + 2) * {sizes} + {TINY[dtype]}"
        return f"({frame.of('sum', e.error)} + {own})" if e.error else f"({own})"

    def _like(self, e: E, frame: Frame, error: str = "") -> E:
        if frame.empty:
            self.tags.add("no_rows")
        return replace(
            e, sql="", oracle="", error=error, key=None, signed_zero=False, literal=False,
            nullable=e.nullable or frame.empty,
        )  # fmt: skip

    def _call(self, fn: str, inner: str, args: tuple[E, ...], like: E, frame: Frame) -> E:
        where = (frame.where,) if frame.where else ()
        if frame.where:
            inner += f") FILTER (WHERE {{{len(args)}}}"
        template = f"{fn}({inner}){frame.over.replace('{', '{{').replace('}', '}}')}"
        made = self.scalars.build(template, (*args, *where), like)
        return replace(made, nullable=like.nullable)
