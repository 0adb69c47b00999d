"""The boxes and arrows of a drawing, from a plan's report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from einsql.core.records import dataclass
from einsql.core.units import duration, plural, quantity
from einsql.explain.operations import InputReport, OperationReport
from einsql.explain.repetitions import repeated_operations
from einsql.explain.report import GraphReport


@dataclass(frozen=True, slots=True)
class Bar:
    """A label of an operation and its cut.

    Attributes:
        label: The label's name.
        extent: The number of the label's values.
        parts: The number of intervals of the cut.
        kept: Whether the label is a key of the result; otherwise it is reduced.
    """

    label: str
    extent: int
    parts: int
    kept: bool


class BoxKind(StrEnum):
    """The kind of a figure's box, as a class of the style sheet."""

    INPUT = "input"
    CONTRACTION = "contraction"
    REDUCTION = "reduction"
    MAP = "map"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Box:
    """A stored tensor, an operation or a repetition of operations.

    Attributes:
        id: The target of links to the box.
        name: The name in EXPLAIN.
        kind: The kind of the object in the box.
        lines: The lines of the computation.
        bars: The operation's labels, on several sites.
        notes: The lines of the costs.
        share: The fraction of the measured time, 0 to 1.
        members: The ids of the hidden boxes of a repetition.
        first: The ids of the boxes that the hidden boxes repeat.
    """

    id: str
    name: str
    kind: BoxKind
    lines: tuple[str, ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()
    share: float | None = None
    members: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrow:
    """A relation that a box reads; boxes are numbered by their position."""

    source: int
    target: int
    text: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """Boxes, producers before readers, and the arrows between them, each pair once."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def figure_of(report: GraphReport) -> Figure:
    """Returns the full graph of a plan."""
    inputs, nodes = report.inputs, report.nodes
    boxes = [_input_box(n, i) for n, i in enumerate(inputs)]
    spent = sum(m.seconds for m in report.measured)
    boxes += [_node_box(n, report.sites, spent) for n in nodes]
    at = {("input", i.id): n for n, i in enumerate(inputs)}
    at |= {("node", node.id): len(inputs) + n for n, node in enumerate(nodes)}
    arrows: dict[tuple[int, int], Arrow] = {}
    for node in nodes:
        target = at["node", node.id]
        for read in node.reads:
            source = at["input" if read.stored else "node", read.id]
            sent, old = read.bytes_sent, arrows.get((source, target))
            text = f"{read.collective} {quantity(sent)}B" if sent else ""
            text = "same tiles" if read.collective == "shared" else text
            if old is not None:  # the same relation read twice
                text = " + ".join(t for t in dict.fromkeys((old.text, text)) if t)
                sent += old.nbytes
            arrows[source, target] = Arrow(source, target, text, sent)
    return Figure(tuple(boxes), tuple(arrows.values()))


def _input_box(number: int, tensor: InputReport) -> Box:
    keys = ", ".join(f"{k}:{_bounds(b)}" for k, b in tensor.keys.items())
    fields = ", ".join(f"{n} {t}" for n, t in tensor.values.items())
    lines = (f"[{keys}]", *([fields] if fields else []), f"{quantity(tensor.bytes)}B")
    return Box(f"input-{number}", tensor.id, BoxKind.INPUT, lines)


def _bounds(bounds: Sequence[int]) -> str:
    lo, hi = bounds
    return str(hi) if lo == 0 else f"{lo}..{hi}"


def _node_box(node: OperationReport, sites: int, spent: float) -> Box:
    keys = node.keys
    bars: tuple[Bar, ...] = ()
    lines = [line.strip() for line in node.text if ":=" in line]
    lines += [re.sub(r"\s+", " ", t.strip()) for t in node.text if t.startswith("  where ")]
    if sites > 1:
        bars = tuple(Bar(x, n, node.partition[x], x in keys) for x, n in node.labels.items())
        bars = tuple(sorted(bars, key=lambda b: not b.kept))
    else:
        over = [f"{x}:{n}" for x, n in node.labels.items() if x not in keys]
        shown = ", ".join(f"{k}:{node.labels[k]}" if k in node.labels else k for k in keys)
        lines.insert(0, f"[{shown}]" + (f" over {', '.join(over)}" if over else ""))
    share = None
    if node.measured is not None and _measured_with(node) is None and spent:
        share = node.measured.seconds / spent
    return Box(
        id=node.id,
        name=node.id,
        kind=BoxKind(node.op),
        lines=tuple(lines),
        bars=bars,
        notes=tuple(_notes(node, sites)),
        share=share,
    )


def _notes(node: OperationReport, sites: int) -> list[str]:
    """Returns the predicted and the measured costs of an operation."""
    predicted = [f"{quantity(node.flops)}flop"]
    if sites > 1:
        predicted.append(f"{quantity(node.floats.sum)}floats")
        if node.bytes_sent:
            predicted.append(f"{quantity(node.bytes_sent)}B")
    else:
        predicted.insert(0, node.kernel or "")
    predicted.append(duration(node.seconds))
    notes = [" · ".join(p for p in predicted if p)]
    if sites > 1 and node.collective != "none":
        notes.insert(0, f"⇄ {node.collective}")
    if (last := _measured_with(node)) is not None:
        notes.append(f"measured with {last}")
    elif node.measured is not None:
        sent = node.measured.bytes_sent
        notes.append(
            f"measured {duration(node.measured.seconds)}"
            + (f" · {quantity(sent)}B" if sent else "")
        )
    return notes


def _measured_with(node: OperationReport) -> str | None:
    """Returns the operation with the measure of the group, unless it is the operation itself."""
    group = node.group.nodes if node.measured and node.group else ()
    return group[-1] if group and group[-1] != node.id else None


# ---- repetitions


def folded(figure: Figure, report: GraphReport) -> Figure | None:
    """Returns the figure with repeated operations drawn once, or None without a long repetition.

    The first repetition is drawn. One box represents all other repetitions and the stored
    tensors that only these read.
    """
    inputs = sum(b.kind is BoxKind.INPUT for b in figure.boxes)
    repeat = repeated_operations(report)
    if repeat is None:
        return None
    start, period, count = repeat
    first, last = inputs + start + period, inputs + start + period * count
    readers: dict[int, list[int]] = {}
    for a in figure.arrows:
        readers.setdefault(a.source, []).append(a.target)
    hidden = set(range(first, last))
    hidden |= {n for n in range(inputs) if n in readers and hidden.issuperset(readers[n])}
    one = figure.boxes[inputs + start : first]
    others = figure.boxes[first:last]
    tensors = len(hidden) - len(others)
    text = f"{one[0].name} … {one[-1].name}" if period > 1 else one[0].name
    shares = [b.share for b in others if b.share is not None]
    box = Box(
        "repeat",
        f"{count - 1:,} × the same",
        BoxKind.REPEAT,
        (
            f"as {text}, cut alike",
            f"{plural(len(others), 'operation')}, {plural(tensors, 'tensor')}",
        ),
        share=sum(shares) if shares else None,
        members=tuple(b.id for b in others),
        first=tuple(b.id for b in one),
    )
    kept = [n for n in range(len(figure.boxes)) if n not in hidden and n < first]
    tail = list(range(last, len(figure.boxes)))
    at = {n: k for k, n in enumerate(kept)}
    at |= {n: len(kept) for n in hidden}
    at |= {n: len(kept) + 1 + k for k, n in enumerate(tail)}
    arrows: dict[tuple[int, int], Arrow] = {}
    for a in figure.arrows:
        ends = at[a.source], at[a.target]
        if ends[0] != ends[1] and ends not in arrows:
            arrows[ends] = Arrow(*ends, a.text, a.nbytes)
    boxes = [figure.boxes[n] for n in kept] + [box] + [figure.boxes[n] for n in tail]
    return Figure(tuple(boxes), tuple(arrows.values()))
