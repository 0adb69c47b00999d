"""Source of a group's kernel: the products and loops of each block in sequence.

The text is canonical, as for single nodes. Two groups of one structure differ in extents,
strides, addresses and limits, which are integer arguments of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einsql.ir.einsum.graph import Const
from einsql.kernels.groups.limits import Limit
from einsql.kernels.groups.members import Member, Product
from einsql.kernels.groups.online import Online
from einsql.kernels.groups.places import Driver, Source, itemsize
from einsql.kernels.groups.plan import PAD, Plan
from einsql.kernels.groups.weights import masks_fit
from einsql.kernels.loops.codegen import generate
from einsql.kernels.loops.expressions import STORED, Role
from einsql.kernels.loops.generated import bits

_PART = "@njit()"
"""Decorator of functions that only the kernel calls; it omits wrappers to save compile time."""
_IMPORTS = """\
from einsql.kernels.groups.tiles import (
    any_empty, begin, carry, clear, clear_rows, copy, copy_numbers, finish, fold, multiply,
    multiply_narrow, not_finite, pack, rescale, spoilt,
)
from einsql.kernels.runtime.compiled_functions import at, real
"""


def external(plan: Plan) -> list[Source]:
    """The operands that the nodes' expressions read from arrays other than buffers."""
    number = {id(m.origin): at for at, m in enumerate(plan.members)}
    sources: list[Source] = []
    for at, m in enumerate(plan.members):
        for operand, name in _reads(plan, at, m):
            source = number.get(id(m.node.operands[operand].source))
            if source is None or plan.buffers[source] is None:
                sources.append((at, operand, name))
    return sources


def _reads(plan: Plan, at: int, m: Member) -> list[tuple[int, str]]:
    if m.product is not None:
        return [m.product.left, m.product.right]
    nest = plan.nests[at]
    assert nest is not None
    return generate(m.node, nest, frozenset()).arrays


def write(plan: Plan, strided: frozenset[Source]) -> Driver:
    """Writes the kernel of a group.

    Args:
        plan: The group.
        strided: The operands whose last label has a stride other than one element.
    """
    return _Writer(plan, strided).write()


class _Writer(Online):
    def write(self) -> Driver:
        plan, out = self.plan, self.out
        for at, m in enumerate(plan.members):
            buffer = plan.buffers[at]
            if buffer is not None:
                for o in m.node.outputs:
                    self.at[at, o.name] = self.room(buffer.size * o.dtype.numpy.itemsize)
        out.reasons = [[] for _ in plan.members]
        cut = plan.block
        out.batch = -(-plan.extent(cut) // plan.rows)
        out.blocks = out.batch
        for c in self.rows[:-1]:
            out.blocks *= plan.extent(c)
        self.open_block()
        self.body()
        out.source = self.assemble()
        return out

    def open_block(self) -> None:
        """Writes a block's start: the value `x` of each class of its rows, and its row count."""
        last = len(self.rows) - 1
        all_rows, batch = self.param(self.plan.extent(self.plan.block)), self.param(self.out.batch)
        size = self.param(self.plan.rows)
        self.depth = 2
        self.emit(f"batch = block // {batch}")
        self.emit(f"x{last} = block % {batch} * {size}")
        self.emit(f"rows = min({size}, {all_rows} - x{last})")
        self.emit("rest = batch")
        for n in reversed(range(last)):
            extent = self.param(self.plan.extent(self.rows[n]))
            self.emit(f"x{n} = rest % {extent}")
            self.emit(f"rest //= {extent}")

    def body(self) -> None:
        """Writes the stages; right sides are packed once per batch, or part by part."""
        plan = self.plan
        stages = list(zip(plan.stages, plan.strips, strict=True))
        mark, pad = len(self.lines), "    " * self.depth
        if plan.parts is not None:
            self.begin(plan.parts)
            if not plan.parts.whole:
                mark, pad = len(self.lines), "    " * self.depth
        for stage, strip in stages[: plan.inner]:
            self.stage(stage, strip)
        packing = self.packing
        if plan.parts is not None:
            self.finish()
        if packing and (plan.parts is None or plan.parts.whole):
            packing = [
                "if batch != held[0]:",
                *(f"    {x}" for x in packing),
                "    held[0] = batch",
            ]
        self.lines[mark:mark] = [pad + line for line in packing]
        for at, m in enumerate(plan.members):
            if m.product is not None:
                self.leave(at, m, m.product)
        _, looked_at = masks_fit(plan.members)
        if looked_at is not None:
            self.emit(f"bad[{len(plan.members)}] |= any_empty({self.row(looked_at, '0')}, rows)")
        for stage, strip in stages[plan.inner :]:
            self.stage(stage, strip)

    def stage(self, stage: Sequence[int], strip: int) -> None:
        first = self.plan.members[stage[0]]
        if first.product is not None:
            self.product(stage[0], first, first.product)
        else:
            self.loops(stage, strip)

    # ---- products

    def product(self, at: int, m: Member, product: Product) -> None:
        """Multiplies the block's rows by a packed right side."""
        plan, node = self.plan, m.node
        (output,) = node.outputs
        size, element = itemsize(output.dtype), f"np.{STORED[output.dtype]}"
        panel = self.param(lambda g: g.panel[at])
        right, depth = self.right(at, m, product, panel)
        deep, across = (self.length(m.own[x]) for x in (product.summed, product.wide))
        left, between = self.read((at, *product.left))
        if not self.is_separate((at, *product.left)):
            step = -(-node.axis(product.summed).extent // (2 * PAD)) * 2 * PAD + PAD
            own, step_name = self.param(self.room(plan.rows * step * size)), self.param(step)
            self.emit(
                f"copy(at({left}, {element}), {between} // {size}, "
                f"{self.step((at, *product.left), product.summed)}, rows, {deep}, "
                f"at(scratch + {own}, {element}), {step_name})"
            )
            left, between = f"scratch + {own}", f"{step_name} * {size}"
        limited = {x.inner for x in m.limits}
        terms, columns = f"(0, {deep})", f"(0, {across})"
        if m.own[product.summed] in limited:
            terms = f"({', '.join(self.around(m))})"
        elif m.own[product.wide] in limited:
            columns = f"({', '.join(self.around(m))})"
        buffer = plan.buffers[at]
        assert buffer is not None
        into, stride = f"scratch + {self.param(self.at[at, output.name])}", buffer.row * size
        scale = self.param(bits(Const(product.scale, output.dtype)))
        constant = f"{element}(real({scale}))"
        adds = self.param(int(at in self.sums))
        if at in self.sums:
            self.rescale(at)
        from einsql.kernels.groups.panels import is_narrow  # imports llvmlite

        narrow = is_narrow(size, node.axis(product.wide).extent)
        self.emit(
            f"multiply{'_narrow' if narrow else ''}({left}, {between}, rows, {right}, {depth}, "
            f"{terms}, {columns}, {into}, {self.param(stride)}, {constant}, {panel}, {size}, "
            f"{adds})"
        )

    def right(self, at: int, m: Member, product: Product, panel: str) -> tuple[str, str]:
        """Packs a right side; returns the address of its rows and the terms of a panel."""
        plan, size = self.plan, itemsize(m.node.outputs[0].dtype)
        element = f"np.{STORED[m.node.outputs[0].dtype]}"
        labels = product.summed, product.wide
        depth, wide = (plan.held(m.own[x]) for x in labels)
        # Panels are as wide as tiles, which are at most 2 · PAD elements.
        start = f"scratch + {self.param(self.room(depth * -(-wide // (2 * PAD)) * 2 * PAD * size))}"
        all_rows, parted = plan.parts is not None and plan.parts.whole, self.parted
        self.parted = parted and not all_rows
        begin, _ = self.read((at, *product.right))
        down, along = (self.step((at, *product.right), x) for x in labels)
        deep, across = (self.length(m.own[x]) for x in labels)
        self.parted = parted
        self.packing.append(
            f"pack(at({begin}, {element}), {down}, {along}, {deep}, {across}, "
            f"at({start}, {element}), {panel})"
        )
        if all_rows and self.along in (m.own[x] for x in labels):
            row = panel if m.own[product.summed] == self.along else deep
            start = f"{start} + part * {row} * {size}"
        return start, deep

    def leave(self, at: int, m: Member, product: Product) -> None:
        """Checks a block of a product for NaN and infinity, and copies it to the group's result."""
        plan, (output,), buffer = self.plan, m.node.outputs, self.plan.buffers[at]
        assert buffer is not None
        size, element = itemsize(output.dtype), f"np.{STORED[output.dtype]}"
        into, row = f"scratch + {self.param(self.at[at, output.name])}", self.param(buffer.row)
        bad, across = f"bad[{len(plan.members)}]", self.param(m.node.axis(product.wide).extent)
        divisor = self.divisor(at, m)
        if divisor is not None:
            place, between = self.made((divisor, plan.members[divisor].node.outputs[0].name))
            divisors = f"at({place}, {element}), {between} // {size}"
            self.emit(f"{bad} |= spoilt(at({into}, {element}), {row}, rows, {across}, {divisors})")
        elif m.own[product.summed] in {x.inner for x in m.limits}:
            self.emit(f"{bad} |= not_finite(at({into}, {element}), {row}, rows, {across})")
        if m.visible:
            begin, step = self.leaving((at, output.name), size)
            self.emit(
                f"copy(at({into}, {element}), {row}, 1, rows, {across}, at({begin}, {element}), "
                f"{step} // {size})"
            )

    def divisor(self, at: int, m: Member) -> int | None:
        """The number of the sum of weights by which a product is divided, or None."""
        if m.divisor is not None:
            return self.number[id(m.divisor)]
        parts = self.plan.parts
        return parts.weights.total if parts is not None and at in self.sums else None

    def is_separate(self, source: Source) -> bool:
        """True if a left side is in a buffer with rows that tiles can read."""
        producer = self.number.get(id(self.plan.members[source[0]].node.operands[source[1]].source))
        if producer is None:
            return False
        m, buffer = self.plan.members[producer], self.plan.buffers[producer]
        keys = [k for k in m.node.keys if m.own[k] not in self.rows[:-1]]
        return buffer is not None and buffer.whole and keys[-1] != self.cut_of(m)

    def cut_of(self, m: Member) -> str:
        """The label of a node that is cut into blocks."""
        return next(k for k in m.node.keys if m.own[k] == self.plan.block)

    # ---- loops

    def loops(self, stage: Sequence[int], strip: int) -> None:
        """Runs consecutive loops over the block, strip by strip."""
        plan = self.plan
        lines: dict[frozenset[Limit], tuple[int, list[tuple[bool, str, str]], tuple[str, str]]] = {}
        for at in stage:
            m = plan.members[at]
            if m.limits and m.limits not in lines:
                inner, edges = self.edges(m)
                lines[m.limits] = inner, edges, self.around(m)
        calls = [self.call(at, plan.members[at]) for at in stage]
        step = self.param(strip)
        if lines and strip > 1:  # row by row if a limit crosses the part
            inside = [self.covers(inner, edges) for inner, edges, _ in lines.values()]
            self.emit(f"step = {step} if {' and '.join(inside)} else 1")
            step = "step"
        self.emit(f"for r in range(0, rows, {step}):")
        self.depth += 1
        self.emit(f"strip = min({step}, rows - r)")
        names: dict[frozenset[Limit], tuple[str, str]] = {}
        for limits, (inner, edges, _) in lines.items():
            extent = self.length(inner)
            least, most = ["0"], [extent]
            for rises, start, slope in edges:
                (least if rises else most).append(f"{start} + r * {slope}")
            name = f"w{len(self.out.numbers)}_{len(names)}"
            names[limits] = self.range(name, least, most, extent)
        for at, call in zip(stage, calls, strict=True):
            m = plan.members[at]
            outer = lines[m.limits][2] if m.limits else None
            self.run(at, m, call, names.get(m.limits), outer)
            if self.parted:
                self.carry(at)
        self.depth -= 1

    def call(self, at: int, m: Member) -> list[str]:
        """Writes the function of a node, and computes its integer arguments.

        Returns:
            The address of each array argument, as text over the row `r`.
        """
        plan, nest = self.plan, self.plan.nests[at]
        assert nest is not None
        apart = frozenset((o, f) for a, o, f in self.strided if a == at)
        program = generate(m.node, nest, apart)
        self.programs[at] = program
        self.out.reasons[at] = program.reasons
        head, _, body = program.source.partition("@njit(")
        self.functions[head] = None
        text = body.partition("\n")[2].replace("def kernel(", f"def node{at}(", 1)
        self.bodies.append(f"{_PART}\n{text}")
        first = len(self.out.numbers)
        numbers: list[str] = []
        for label in nest.loops:
            c = m.own[label]
            numbers += [self.param(0), self.param(1 if c in self.rows else plan.extent(c))]
        for p in program.params:
            buffer = plan.buffers[at]
            if p.role is Role.STRIDE:
                numbers.append(self.step((at, *program.arrays[p.array]), p.label))
            elif p.role is Role.KEY and buffer is not None:
                numbers.append(self.param(buffer.steps[m.node.keys.index(p.label)]))
            else:
                numbers.append(self.param(p.of_node(m.node)))
        numbers += [self.param(bits(c)) for c in program.constants]
        places = [self.read((at, *a)) for a in program.arrays]
        places += [self.made((at, o.name)) for o in m.node.outputs]
        addresses = []
        for n, (begin, between) in enumerate(places):
            self.emit(f"a{at}_{n} = {begin}")
            addresses.append(f"a{at}_{n} + r * {between}")
        room = len(numbers) + len(places)
        self.head.append(f"q{at} = at(scratch + {self.param(self.room(8 * room))}, np.int64)")
        self.head.append(f"copy_numbers(p, {first}, {len(numbers)}, q{at})")
        return addresses

    def run(
        self,
        at: int,
        m: Member,
        addresses: Sequence[str],
        limits: tuple[str, str] | None,
        outer: tuple[str, str] | None,
    ) -> None:
        """Calls a node's function on a strip; results of the row beyond its limits are 0."""
        nest, program = self.plan.nests[at], self.programs[at]
        assert nest is not None
        inner = next(iter({x.inner for x in m.limits}), None)
        for n, label in enumerate(nest.loops):
            if m.own[label] == self.plan.block:
                self.emit(f"q{at}[{2 * n + 1}] = strip")
            elif m.own[label] == inner and limits is not None:
                self.emit(f"q{at}[{2 * n}] = {limits[0]}")
                self.emit(f"q{at}[{2 * n + 1}] = {limits[1]}")
            elif self.parted and m.own[label] == self.along:
                self.emit(f"q{at}[{2 * n + 1}] = width")
        first = 2 * len(nest.loops)
        for n, p in enumerate(program.params):
            c = m.own.get(p.label)
            if p.role is Role.LO and c in self.rows:
                lo = self.param(m.node.axis(p.label).lo)
                moved = " + r" if c == self.plan.block else ""
                self.emit(f"q{at}[{first + n}] = {lo} + x{self.rows.index(c)}{moved}")
            elif p.role is Role.LO and self.parted and c == self.along:
                self.emit(f"q{at}[{first + n}] = {self.param(m.node.axis(p.label).lo)} + part")
        first += len(program.params) + len(program.constants)
        for n, address in enumerate(addresses):
            self.emit(f"q{at}[{first + n}] = {address}")
        self.emit(f"bad[{at}] |= node{at}(q{at})")
        last = m.last
        if limits is None or outer is None or m.own[last] != inner:
            return
        if self.plan.buffers[at] is None:  # results of the group are not cleared elsewhere
            outer = "0", self.param(m.node.axis(last).extent)
        for o, address in zip(m.node.outputs, addresses[len(program.arrays) :], strict=True):
            array = f"at({address}, np.{STORED[o.dtype]})"
            self.emit(f"clear({array}, {outer[0]}, {limits[0]})")
            self.emit(f"clear({array}, {limits[1]}, {outer[1]})")

    # ---- the kernel

    def assemble(self) -> str:
        lines = "\n".join(self.lines)
        text = "\n".join([*self.head, lines])
        named = sorted({int(n) for n in re.findall(r"\bg(\d+)\b", text)})
        head = [f"    g{n} = p[{n}]" for n in named]
        head += [f"    {line}" for line in self.head]
        head.append("    held = at(scratch, np.int64)")
        signature = '"void(int64, int64, int64[::1], int64[::1], int64)"'
        decorator = f"@njit({signature})"
        parts = [
            "".join(self.functions),
            _IMPORTS,
            *(f"\n\n{body}" for body in self.bodies),
            f"\n\n{decorator}\ndef kernel(first, last, p, bad, scratch):\n",
            "\n".join(head),
            "\n    for block in range(first, last):\n",
            lines,
            "\n",
        ]
        return "".join(parts)
