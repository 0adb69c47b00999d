"""Source of a group's kernel: for each block its products and loops, one after another.

The text is canonical like that of single nodes: what differs between two groups of one
structure — extents, strides, addresses, limits — are integers that the kernel is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsql.kernels.codegen import generate
from einsql.kernels.expressions import CARRIERS, Program
from einsql.kernels.groups.limits import Limit
from einsql.kernels.groups.members import Member, Product
from einsql.kernels.groups.places import (
    Driver,
    Places,
    Source,
    extreme,
    itemsize,
    kind,
    numbered,
)
from einsql.kernels.groups.plan import PAD, Plan

_IMPORTS = "from einsql.kernels.groups.tiles import any_nan, at, clear, copy, multiply, pack\n"


def external(plan: Plan) -> list[Source]:
    """What the nodes read that does not lie in a buffer, as far as their expressions say."""
    number = {id(n): at for at, n in enumerate(plan.nodes)}
    found: list[Source] = []
    for at, m in enumerate(plan.members):
        for operand, name in _reads(plan, at, m):
            source = number.get(id(m.node.operands[operand].source))
            if source is None or plan.buffers[source] is None:
                found.append((at, operand, name))
    return found


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
        strided: What it reads whose last label does not step by one element.
    """
    return _Writer(plan, strided).write()


class _Writer(Places):
    """Writes products and loops."""

    def write(self) -> Driver:
        """The kernel."""
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
        """Where a block begins: `x` of each class of its rows, and how many rows it has."""
        last = len(self.rows) - 1
        whole, batch = self.param(self.plan.extent(self.plan.block)), self.param(self.out.batch)
        size = self.param(self.plan.rows)
        self.depth = 2
        self.emit(f"batch = block // {batch}")
        self.emit(f"x{last} = block % {batch} * {size}")
        self.emit(f"rows = min({size}, {whole} - x{last})")
        self.emit("rest = batch")
        for n in reversed(range(last)):
            extent = self.param(self.plan.extent(self.rows[n]))
            self.emit(f"x{n} = rest % {extent}")
            self.emit(f"rest //= {extent}")

    def body(self) -> None:
        """The stages, behind what lays out the right sides of products once for each batch."""
        plan = self.plan
        marks = len(self.lines)
        for stage, strip in zip(plan.stages, plan.strips, strict=True):
            first = plan.members[stage[0]]
            if first.product is not None:
                self.product(stage[0], first, first.product)
            else:
                self.loops(stage, strip)
        if self.packing:
            pad = "    " * 2
            packed = [f"{pad}if batch != packed:", *self.packing, f"{pad}    packed = batch"]
            self.lines[marks:marks] = packed

    # ---- products

    def product(self, at: int, m: Member, product: Product) -> None:
        """Multiplies the block's rows by a right side that was laid out before."""
        plan, node = self.plan, m.node
        (output,) = node.outputs
        size, element = itemsize(output.dtype), f"np.{CARRIERS[output.dtype]}"
        depth, wide = (node.axis(x).extent for x in (product.summed, product.wide))
        panel = self.param(lambda g: g.panel[at])
        deep, across = self.param(depth), self.param(wide)
        # Panels are as wide as tiles, which are at most 2 · PAD elements.
        right = self.param(self.room(depth * (-(-wide // (2 * PAD)) * 2 * PAD) * size))
        begin, _ = self.read((at, *product.right))
        down, along = (self.step((at, *product.right), x) for x in (product.summed, product.wide))
        self.packing.append(
            f"            pack(at({begin}, {element}), {down}, {along}, {deep}, {across}, "
            f"at(scratch + {right}, {element}), {panel})"
        )
        left, between = self.read((at, *product.left))
        if not self.lies_apart((at, *product.left)):
            step = -(-depth // (2 * PAD)) * 2 * PAD + PAD
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
        constant = self.constant(output.dtype, product.scale)
        self.emit(
            f"multiply({left}, {between}, rows, scratch + {right}, {deep}, {terms}, {columns}, "
            f"{into}, {self.param(stride)}, {constant}, {panel}, {size})"
        )
        row = self.param(buffer.row)
        if m.own[product.summed] in limited:
            self.emit(
                f"bad[{len(plan.members)}] |= any_nan(at({into}, {element}), {row}, rows, {across})"
            )
        if plan.visible[at]:
            begin, step_bytes = self.leaving((at, output.name), size)
            self.emit(
                f"copy(at({into}, {element}), {row}, 1, rows, {across}, at({begin}, {element}), "
                f"{step_bytes} // {size})"
            )

    def lies_apart(self, source: Source) -> bool:
        """True if a left side lies in a buffer whose rows tiles can read."""
        producer = self.number.get(id(self.plan.members[source[0]].node.operands[source[1]].source))
        if producer is None:
            return False
        m, buffer = self.plan.members[producer], self.plan.buffers[producer]
        return buffer is not None and buffer.whole and m.node.keys[-1] != self.cut_of(m)

    def cut_of(self, m: Member) -> str:
        """A node's label that is cut in blocks."""
        return next(k for k in m.node.keys if m.own[k] == self.plan.block)

    # ---- loops

    def loops(self, stage: Sequence[int], strip: int) -> None:
        """Takes the block strip by strip through consecutive loops."""
        plan = self.plan
        lines: dict[frozenset[Limit], tuple[int, list[tuple[bool, str, str]], tuple[str, str]]] = {}
        for at in stage:
            m = plan.members[at]
            if m.limits and m.limits not in lines:
                inner, edges = self.edges(m)
                lines[m.limits] = inner, edges, self.around(m)
        calls = [self.call(at, plan.members[at]) for at in stage]
        self.emit(f"for r in range(0, rows, {self.param(strip)}):")
        self.depth += 1
        self.emit(f"strip = min({self.param(strip)}, rows - r)")
        names: dict[frozenset[Limit], tuple[str, str]] = {}
        for limits, (inner, edges, _) in lines.items():
            whole = self.param(plan.extent(inner))
            least, most = ["0"], [whole]
            for rises, start, slope in edges:
                (least if rises else most).append(f"{start} + r * {slope}")
            name = f"w{len(self.out.numbers)}"
            self.emit(f"{name} = min({extreme('max', least)}, {whole})")
            self.emit(f"{name}e = max({extreme('min', most)}, {name})")
            names[limits] = name, f"{name}e"
        for at, call in zip(stage, calls, strict=True):
            m = plan.members[at]
            outer = lines[m.limits][2] if m.limits else None
            self.run(at, m, call, names.get(m.limits), outer)
        self.depth -= 1

    def call(self, at: int, m: Member) -> tuple[Program, list[str]]:
        """Prepares a node's kernel: its text, its integers, and the arrays it is given."""
        plan = self.plan
        nest = plan.nests[at]
        assert nest is not None
        apart = frozenset((o, f) for a, o, f in self.strided if a == at)
        program = generate(m.node, nest, apart)
        self.out.reasons[at] = program.reasons
        head, _, body = program.source.partition("@njit(")
        self.functions[head] = None
        _, _, text = body.partition("\n")
        body = text.replace("def kernel(", f"def node{at}(", 1)
        self.bodies.append(f'@njit(nogil=True, error_model="numpy")\n{body}')
        first = len(self.out.numbers)
        for p in program.params:
            if p.kind == "stride":
                self.step((at, *program.arrays[p.array]), p.label)
            elif p.kind == "key":
                self.param(self.key_step(at, m, p.label))
            else:
                a = m.node.axis(p.label)
                self.param(a.lo if p.kind == "lo" else a.hi)
        box = [0] * (2 * len(nest.loops))
        for n, label in enumerate(nest.loops):
            box[2 * n + 1] = 1 if m.own[label] in self.rows else m.node.axis(label).extent
        names = [self.param(n) for n in box]
        self.head.append(
            f"q{at} = np.array([{numbered(range(first, first + len(program.params)))}])"
        )
        self.head.append(f"b{at} = np.array([{', '.join(names) or '0'}])")
        arrays = [*(f"c{len(self.names) + n}" for n in range(len(program.constants)))]
        for c in program.constants:
            self.constant(c.dtype, c.value)
        for operand, name in program.arrays:
            begin, between = self.read((at, operand, name))
            dtype = m.node.operands[operand].source.schema.dtype(name)
            self.emit(f"a{at}_{len(arrays)} = {begin}")
            arrays.append(f"at(a{at}_{len(arrays)} + r * {between}, np.{kind(dtype)})")
        for o in m.node.outputs:
            begin, between = self.made((at, o.name))
            self.emit(f"a{at}_{len(arrays)} = {begin}")
            arrays.append(f"at(a{at}_{len(arrays)} + r * {between}, np.{kind(o.dtype)})")
        return program, arrays

    def run(
        self, at: int, m: Member, call: tuple[Program, list[str]],
        limits: tuple[str, str] | None, outer: tuple[str, str] | None,
    ) -> None:  # fmt: skip
        """Calls a node's kernel on a strip; beyond its limits a result within the row is 0."""
        program, arrays = call
        nest = self.plan.nests[at]
        assert nest is not None
        for n, p in enumerate(program.params):
            c = m.own.get(p.label)
            if p.kind == "lo" and c in self.rows and m.node.axis(p.label).define is None:
                place = self.rows.index(c)
                moved = " + r" if c == self.plan.block else ""
                self.emit(f"q{at}[{n}] = {self.param(m.node.axis(p.label).lo)} + x{place}{moved}")
        inner = next(iter({x.inner for x in m.limits}), None)
        for n, label in enumerate(nest.loops):
            if m.own[label] == self.plan.block:
                self.emit(f"b{at}[{2 * n + 1}] = strip")
            elif m.own[label] == inner and limits is not None:
                self.emit(f"b{at}[{2 * n}] = {limits[0]}")
                self.emit(f"b{at}[{2 * n + 1}] = {limits[1]}")
        self.emit(f"node{at}({', '.join([f'b{at}', f'q{at}', 'err', *arrays])})")
        self.emit(f"bad[{at}] |= err[0]")
        if limits is None or outer is None or m.own[m.node.keys[-1]] != inner:
            return
        own = self.plan.buffers[at]
        first, stop = (
            outer if own is not None else ("0", self.param(m.node.axis(m.node.keys[-1]).extent))
        )
        for array in arrays[len(arrays) - len(m.node.outputs) :]:
            self.emit(f"clear({array}, {first}, {limits[0]})")
            self.emit(f"clear({array}, {limits[1]}, {stop})")

    # ---- the whole

    def assemble(self) -> str:
        """The module's text."""
        names = ["first", "last", "p", "bad", "scratch", *self.names]
        kinds = ["int64", "int64", "int64[::1]", "int64[::1]", "int64", *self.types]
        count = len(self.out.numbers)
        head = [f"    g{n} = p[{n}]" for n in range(count)]
        head += [f"    {line}" for line in self.head]
        head += ["    err = np.zeros(1, np.int64)", "    packed = -1"]
        signature = f'"void({", ".join(kinds)})"'
        decorator = f'@njit({signature}, cache=True, nogil=True, error_model="numpy")'
        parts = [
            "".join(self.functions) or "import numpy as np\nfrom numba import njit\n",
            _IMPORTS,
            *(f"\n\n{body}" for body in self.bodies),
            f"\n\n{decorator}\ndef kernel({', '.join(names)}):\n",
            "\n".join(head),
            "\n    for block in range(first, last):\n",
            "\n".join(self.lines),
            "\n",
        ]
        return "".join(parts)
