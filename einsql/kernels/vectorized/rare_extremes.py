"""Extremes that matter only where a sum is not finite: they are reduced when that happens.

The mean of equal values may be off by a rounding, whose square may leave DOUBLE. Extremes tell
whether values are equal. While the sums of squares are finite, the extremes are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from einsql.core.source_writer import FieldSource, Page, write_of
from einsql.ir.einsum.conditional_outputs import always, beside
from einsql.ir.einsum.graph import EinSum
from einsql.kernels.kernel import Compile, CompiledNode, Fields, Runner, Tick


def compile_rare_extremes(node: EinSum, compile_node: Compile) -> CompiledNode[Runner]:
    """Compiles a node with reductions of `beside(x, term)`, next to SUM(term).

    Args:
        node: A node that has some.
        compile_node: Compiles nodes without them.
    """
    marks = {o: mark for o in node.outputs if (mark := beside(o)) is not None}
    sums = {(o.args[0], o.where): o.name for o in node.outputs if o.reduction == "sum"}
    rare = {o.name: sums.get((mark.args[1], o.where)) for o, mark in marks.items()}
    plain = always(node)
    if None in rare.values():
        return compile_node(plain)
    often = replace(node, outputs=tuple(o for o in node.outputs if o.name not in rare))
    rest = replace(plain, outputs=tuple(o for o in plain.outputs if o.name in rare))
    compiled = compile_node(often)
    nothing = {
        o.name: np.broadcast_to(o.dtype.numpy.type(0), node.schema.shape) for o in rest.outputs
    }
    sum_names = tuple(dict.fromkeys(s for s in rare.values() if s is not None))
    run = _RareExtremes(compiled.run, sum_names, _Rest(rest, compile_node, nothing))
    return replace(compiled, run=run)


@dataclass(slots=True)
class _Rest:
    """The reductions that are seldom needed, compiled when they are.

    Attributes:
        node: Computes them.
        compile_node: Compiles it.
        nothing: Values in their place where they are not read.
        run: Its runner, once it has been needed.
    """

    node: EinSum
    compile_node: Compile
    nothing: Mapping[str, np.ndarray]
    run: Runner | None = field(default=None)

    def __call__(
        self, sums: Sequence[np.ndarray], operands: Sequence[Fields], tick: Tick
    ) -> Mapping[str, np.ndarray]:
        if all(np.isfinite(s).all() for s in sums):
            return self.nothing
        if self.run is None:
            self.run = self.compile_node(self.node).run
        return self.run(operands, tick)


@dataclass(frozen=True, slots=True, eq=False)
class _RareExtremes:
    """Runs the part that is always needed, then the rest if it is.

    Attributes:
        often: The runner of the former.
        sums: The fields that tell.
        rest: The latter.
    """

    often: Runner
    sums: tuple[str, ...]
    rest: _Rest

    def __call__(self, operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        fields = self.often(operands, tick)
        return {**fields, **self.rest([fields[s] for s in self.sums], operands, tick)}

    def write(self, page: Page, operands: Sequence[FieldSource]) -> Mapping[str, str] | None:
        write = write_of(self.often)
        names = None if write is None else write(page, operands)
        if names is None:
            return None
        sums = ", ".join(names[s] for s in self.sums)
        arguments = ", ".join(o.whole for o in operands)
        rest = page.line(f"{page.held(self.rest, 'f')}(({sums},), ({arguments},), {page.tick})")
        more = {o.name: page.line(f"{rest}[{o.name!r}]") for o in self.rest.node.outputs}
        return {**names, **more}
