"""Turns conditions that bound keys by parameters into windows, or into guards over scalars."""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.graph import Call, Const, Expr, Label, call, conjuncts
from einsql.sql.binder.domain import Domain
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parameters.windows import Edge, Window, edges_of, moved


def settle(domain: Domain) -> None:
    """Converts conditions that bound keys by parameters to windows and edges.

    All conditions on the keys must be known. Without run-time parameters the function changes
    nothing. A key with a lower and an upper bound is read within a window; the plan is for the
    window's extent. Any other bound remains a condition.

    Raises:
        NeedsValuesError: The parameters leave a key no value, or a window exceeds the key.
    """
    if not domain.parameters.read:
        return
    by_label: dict[str, list[tuple[Expr, tuple[Edge, ...]]]] = {}
    guards: list[Expr] = []
    for term in (t for g in domain.guards for t in conjuncts(domain.canonical(g))):
        edges = () if term in domain.settled else edges_of(term)
        if not edges or edges[0].label in domain.outer:
            guards.append(term)
        else:
            by_label.setdefault(edges[0].label, []).append((term, edges))
    for label, terms in by_label.items():
        guards += _bounded(domain, label, terms)
    domain.guards = guards
    _follow(domain)


def _bounded(domain: Domain, label: str, terms: list[tuple[Expr, tuple[Edge, ...]]]) -> list[Expr]:
    """Bounds a label; returns the remaining conditions."""
    window, used = None, list[Expr]()
    if label not in domain.defines and domain.window_of(label) is None:
        window, used = _window(domain, label, terms)
    left: list[Expr] = []
    edges: list[Edge | Window] = [] if window is None else [window]
    alone = window is None and domain.window_of(label) is None
    for term, own in terms:
        if term in used:
            continue
        edges += own
        if alone and len(own) == 1:
            domain.axes[label], term = own[0].narrowed(domain.parameters, *domain.axes[label])
        domain.settled.add(term)
        left.append(term)
    domain.edges[label] = (*domain.edges.get(label, ()), *edges)
    return left


def _window(
    domain: Domain, label: str, terms: list[tuple[Expr, tuple[Edge, ...]]]
) -> tuple[Window | None, list[Expr]]:
    """The window of the conditions on a label or None, and the conditions that it replaces."""
    parameters, (lo, hi) = domain.parameters, domain.axes[label]
    equal = next(((t, es[0]) for t, es in terms if len(es) == 2), None)
    below = next(((t, es[0]) for t, es in terms if len(es) == 1 and not es[0].upper), None)
    above = next(((t, es[0]) for t, es in terms if len(es) == 1 and es[0].upper), None)
    if equal is not None:
        window, used = Window(equal[1].value, 1, lo, hi), [equal[0]]
    elif below is not None and above is not None:
        least, most = below[1], above[1]
        numbers = least.numbers | most.numbers
        # The last of several batches may be shorter: it ends with the key.
        extent = parameters.depend(f"min({most.text}, {hi}) - {least.text}", numbers)
        if extent <= 0:
            raise NeedsValuesError(numbers)
        start = least.value
        if least.strict:
            start = call("add", start.dtype, start, Const(1, start.dtype))
        window, used = Window(start, extent, lo, hi), [below[0], above[0]]
    else:
        return None, []
    window.within(parameters, lo, hi)
    return window, used


def _follow(domain: Domain) -> None:
    """Sets windows of labels that equal another label plus a constant, as in `y.i = x.i + 1`."""
    for label, define in domain.defines.items():
        define = domain.canonical(define)
        base = define
        if isinstance(define, Call) and define.fn in ("add", "sub"):
            base, by = define.args
            if not isinstance(by, Const) or not by.dtype.is_integer:
                continue
        if not isinstance(base, Label) or domain.edges_of(label):
            continue
        window = domain.window_of(domain.find(base.name))
        if window is None:
            continue
        lo, hi = domain.axes[label]
        window = replace(moved(window, define), lo=lo, hi=hi)
        window.within(domain.parameters, lo, hi)
        domain.edges[label] = (window,)
