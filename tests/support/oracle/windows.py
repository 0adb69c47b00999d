"""Random windows: parts by keys and expressions, orders, and frames that may be empty."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.oracle.aggregates import Frame
from tests.support.oracle.expressions import Expressions
from tests.support.oracle.joins import From
from tests.support.oracle.relations import E, UnsoundError

_RANGES = (
    ("", False),
    ("RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING", False),
    ("RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING", True),
    ("RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING", True),
)
"""Frames by the value of one key, and whether some row's frame may be empty."""

_ROWS = (
    ("ROWS 1 PRECEDING", False),
    ("ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", False),
    ("ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING", True),
    ("ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING", True),
)
"""Frames by the number of rows, which need an order without ties."""

_PARTS = ("{0}", "{0} % 2", "{0} // 2", "{0} + 1", "{0} = 1", "-{0}")
"""Expressions of PARTITION BY over a key; the first one leaves one value of the key."""


@dataclass(frozen=True)
class Window:
    """An OVER clause.

    Attributes:
        frame: Its text, for aggregates.
        order: Its text without the frame, for functions that have none.
        total: The order has no ties.
        several: It orders by several keys, which DuckDB does.
    """

    frame: Frame
    order: str
    total: bool
    several: bool


class Windows:
    """Makes windows over the rows of a FROM clause."""

    def __init__(self, ex: Expressions) -> None:
        self.ex, self.c = ex, ex.c

    def window(self, source: From, several: bool) -> Window:
        """A window over the rows of a FROM clause.

        Args:
            source: The clause.
            several: Whether its order may have several keys.
        """
        keys = self.c.some(source.keys)
        parts = [self.c.weighted([(10, _PARTS[0]), *((1, p) for p in _PARTS[1:])]) for _ in keys]
        clauses: list[str] = []
        if keys:
            texts = [p.format(k.sql) for p, k in zip(parts, keys, strict=True)]
            clauses.append(f"PARTITION BY {', '.join(texts)}")
        fixed = [k for p, k in zip(parts, keys, strict=True) if p == _PARTS[0]]
        others = [k for k in source.keys if k not in fixed]
        if not others or not self.c.chance(50):
            return self._of(source, clauses, "", False, 0)
        total = source.unique and (several or len(others) == 1) and self.c.chance(50)
        by = others if total else [self.c.pick(others)]
        terms = ", ".join(f"{k.sql}{self.c.pick(['', ' DESC'])}" for k in by)
        clauses.append(f"ORDER BY {terms}")
        frames = [*(_RANGES if len(by) == 1 else _RANGES[:1]), *(_ROWS if total else ())]
        frame, empty = self.c.pick(frames)
        return self._of(source, clauses, frame, empty, len(by) if total else -len(by))

    def _of(self, source: From, clauses: list[str], frame: str, empty: bool, by: int) -> Window:
        order = f" OVER ({' '.join(clauses)})"
        over = f" OVER ({' '.join([*clauses, *([frame] if frame else [])])})"
        frame_of = Frame(source.rows, over=over, grouped=not empty)
        return Window(frame_of, order, by > 0, abs(by) > 1)

    def positional(self, source: From, window: Window, mixed: bool) -> E:
        """A function of a row's place among the rows of its part.

        Args:
            source: The clause that gives the rows.
            window: The window.
            mixed: Whether it may be one that DuckDB computes.
        """
        if not window.total and not mixed:
            return self.ex.aggregates.count(None, window.frame)
        ranks = ["rank()", "dense_rank()"] if mixed else []
        rank = self.c.pick(["row_number()", *ranks] if window.total else ranks)
        place = E(f"{rank}{window.order}", "BIGINT", float(source.rows + 1), 0)
        if not window.total:
            return place
        more = ["nth_value", "ntile"] if mixed else []
        fn = self.c.pick(["", "lag", "lead", "first_value", "last_value", *more])
        if not fn:
            return place
        if fn == "ntile":
            return replace(place, sql=f"ntile(2){window.order}", oracle=f"ntile(2){window.order}")
        try:
            e = self.ex.number(source.leaves, self.c.below(2))
        except UnsoundError:
            return place
        if e.dtype == "DECIMAL" or e.literal or e.raises:
            return place
        if fn in ("lag", "lead"):
            return self._shifted(fn, e, window)
        second = ", 2" if fn == "nth_value" else ""
        like = replace(self._like(e), nullable=e.nullable or window.frame.empty or bool(second))
        return self._call(f"{fn}({{0}}{second}){window.frame.over}", e, like)

    def limit(self, window: Window) -> str:
        """A condition of QUALIFY that keeps few rows of each part."""
        return f"row_number(){window.order} <= {self.c.between(1, 2)}"

    def _shifted(self, fn: str, e: E, window: Window) -> E:
        """The value of another row, or NULL or a number where there is none."""
        by = self.c.between(1, 2)
        if e.exact and self.c.chance(30):
            like = replace(self._like(e), magnitude=max(1.0, e.magnitude))
            return self._call(f"{fn}({{0}}, {by}, 0){window.order}", e, like)
        return self._call(f"{fn}({{0}}, {by}){window.order}", e,
                          replace(self._like(e), nullable=True))  # fmt: skip

    @staticmethod
    def _like(e: E) -> E:
        return replace(e, sql="", oracle="", error="", key=None, signed_zero=False)

    def _call(self, template: str, e: E, like: E) -> E:
        call = self.ex.scalars.build(template, (e,), like)
        error = template.format(e.error) if e.error else ""
        return replace(call, error=error, nullable=like.nullable)
