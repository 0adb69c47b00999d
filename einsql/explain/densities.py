"""The densities of sparse tensors in a plan: stored elements of inputs, estimates of results."""

from __future__ import annotations

from collections.abc import Mapping
from math import expm1, log1p, prod

from einsql.engine.step import Step
from einsql.explain.selectivity import bounds_share, kept_share
from einsql.ir.einsum.graph import (
    EinSum,
    Input,
    Roots,
    filled_operands,
    stored_operands,
    walk,
)
from einsql.ir.einsum.printer import node_names
from einsql.storage.fields import Fields
from einsql.storage.sparse_fields import sparse_fields_of


def density_lines(roots: Roots, inputs: Mapping[str, Fields]) -> list[str]:
    """The lines of a plan's sparse tensors: stored elements of all elements.

    Results are estimated: elements are independent of each other, and conditions keep the fraction
    that they keep of a sample (`selectivity.py`). EXPLAIN ANALYZE measures the stored elements of
    results.

    Args:
        roots: The graph.
        inputs: The fields of its inputs.
    """
    lines, names = list[str](), node_names(roots)
    elements = expected_elements(roots, inputs)
    for node in walk(*roots):
        if id(node) not in elements:
            continue
        size, stored = node.schema.size, elements[id(node)]
        if isinstance(node, Input):
            text = f"{node.name}  {stored:,.0f}"
        else:
            text = f"{names[id(node)]}  about {round(stored):,}"
        lines.append(f"{text} of {size:,} elements ({100 * stored / max(1, size):.3g} %)")
    return list(dict.fromkeys(lines))


def expected_elements(roots: Roots, inputs: Mapping[str, Fields]) -> dict[int, float]:
    """The number of stored elements of each sparse tensor by its id: of results an estimate.

    Args:
        roots: The graph.
        inputs: The fields of its inputs.
    """
    elements: dict[int, float] = {}
    for node in walk(*roots):
        if not node.sparse:
            continue
        if isinstance(node, Input):
            few = sparse_fields_of(inputs.get(node.name, {}))
            if few is not None:
                elements[id(node)] = few.stored
        else:
            elements[id(node)] = _estimate(node, elements, inputs)
    return elements


def read_elements(
    node: EinSum, number: int, elements: Mapping[int, float], inputs: Mapping[str, Fields]
) -> float:
    """The expected number of an operand's elements within a node's bounds and conditions."""
    source = node.operands[number].source
    stored = elements.get(id(source), float(source.schema.size))
    return stored * bounds_share(node, number) * kept_share(node, number, inputs)


def storage_line(
    step: Step, elements: Mapping[int, float], inputs: Mapping[str, Fields], is_measured: bool
) -> str | None:
    """The choice between stored elements and a dense copy; None for a step without one.

    Args:
        step: The step.
        elements: The stored elements of each tensor; see `expected_elements`.
        inputs: The fields of the graph's inputs.
        is_measured: Whether the choice is that of the last run, and not the expected one.
    """
    if step.choice is None:
        return None
    if is_measured and step.choice.ran is not None:
        return step.choice.ran.text
    ((_, node),) = step.nodes
    known = {n: read_elements(node, n, elements, inputs) for n in range(len(node.operands))}
    predicted = step.choice.estimate(known)
    return None if predicted is None else predicted.text


def _estimate(node: EinSum, elements: Mapping[int, float], inputs: Mapping[str, Fields]) -> float:
    """The expected number of stored elements of a result."""
    size = node.schema.size
    stored = stored_operands(node)
    shares = [
        elements.get(id(source), source.schema.size)
        / max(1, source.schema.size)
        * (kept_share(node, n, inputs) if stored else 1.0)
        for n in stored or filled_operands(node)
        for source in [node.operands[n].source]
    ]
    if not stored and not node.reduced:  # a map has the elements of any operand
        return min(1.0, sum(shares)) * size
    share = prod(shares)
    terms = prod(a.extent for a in map(node.axis, node.reduced) if a.define is None)
    # The probability that one of the terms of a group exists.
    return -expm1(terms * log1p(-share)) * size if share < 1 else float(size)
