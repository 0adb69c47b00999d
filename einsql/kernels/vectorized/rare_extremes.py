"""Extremes that are needed only if a sum is not finite; they are reduced in that case.

The mean of equal values may have a rounding error whose square overflows DOUBLE. The extremes
detect equal values. If the sums of squares are finite, the extremes are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from einsql.core.records import dataclass
from einsql.core.source_writer import FieldSource, Page, write_of
from einsql.ir.einsum.conditional_outputs import always, beside
from einsql.ir.einsum.graph import EinSum
from einsql.kernels.kernel import Arrays, Compile, CompiledNode, Runner, Tick


def compile_rare_extremes(node: EinSum, compile_node: Compile) -> CompiledNode[Runner]:
    """Compiles a node with reductions of `beside(x, term)`, next to SUM(term).

    Args:
        node: A node with such reductions.
        compile_node: Compiles nodes without such reductions.
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
    """The rarely needed reductions, compiled on first use.

    Attributes:
        node: The node that computes the reductions.
        compile_node: Compiles the node.
        nothing: The placeholder fields for runs without the reductions.
        run: The node's runner; None before its first use.
    """

    node: EinSum
    compile_node: Compile
    nothing: Mapping[str, np.ndarray]
    run: Runner | None = field(default=None)

    def __call__(
        self, sums: Sequence[np.ndarray], operands: Sequence[Arrays], tick: Tick
    ) -> Mapping[str, np.ndarray]:
        if all(np.isfinite(s).all() for s in sums):
            return self.nothing
        if self.run is None:
            self.run = self.compile_node(self.node).run
        return self.run(operands, tick)


@dataclass(frozen=True, slots=True, eq=False)
class _RareExtremes:
    """Runs the common reductions, then the rare ones if a sum is not finite.

    Attributes:
        often: The runner of the common reductions.
        sums: The fields of the tested sums.
        rest: The rare reductions.
    """

    often: Runner
    sums: tuple[str, ...]
    rest: _Rest

    def __call__(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
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
