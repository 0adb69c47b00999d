"""Ring: queries and keys of a softmax have as many parts as sites, and keys pass around a ring.

Site s has a part of the queries and begins with the same part of the keys. In round r it reads the
part (s + r) mod n, which it receives from its neighbour s + 1: a part moves by one site a round. A
round is a softmax over one part of the keys, with its own maximum, denominator and numerator. The
running state of the rounds before is merged with it:

    m' = max(m, m_r),  z' = exp(m - m') · z + exp(m_r - m') · z_r,  and likewise each numerator.

So a site stores the keys that it works on and the keys that arrive, and the state of its queries.

Under a causal mask the last queries have more keys than the first ones. If this leaves the sites
with unequal work, queries and keys have 2n parts, and site s has the parts s and 2n - 1 - s of
both (zig-zag). Rounds of two parts that a mask excludes at every site are omitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Roots,
    Value,
    bigint,
    conj,
    disj,
    walk,
)
from einsql.ir.einsum.graph_rewriting import fresh, hint_over, with_sources
from einsql.ir.hints import Ring
from einsql.optimizer.rewrite.parts.ring_rounds import Member, Round, Rounds, members
from einsql.optimizer.rewrite.parts.softmax import Softmax, reads_sparse, softmaxes
from einsql.optimizer.rewrite.parts.split_keys import exists, undivided, unless_empty
from einsql.optimizer.rewrite.rules import Rule


def ring_keys(roots: Roots) -> tuple[Roots, int]:
    """Passes the keys of each softmax with a RING hint around a ring of sites."""
    rings: dict[int, RunningState] = {}
    count = 0
    for softmax in softmaxes(roots):
        sites = next((int(n) for n in softmax.hints if isinstance(n, Ring)), None)
        rounds = None if sites is None else members(softmax, sites)
        if sites is None or rounds is None or reads_sparse(softmax):
            continue
        if rings.keys().isdisjoint(id(m.origin) for m in rounds):
            rings |= dict.fromkeys(
                (id(m.origin) for m in rounds), RunningState(softmax, rounds, sites)
            )
            count += 1
    if not rings:
        return roots, 0
    done: dict[int, Node] = {}
    for node in walk(*roots):
        ring = rings.get(id(node))
        if not isinstance(node, EinSum):
            done[id(node)] = node
        elif ring is None:
            done[id(node)] = with_sources(node, [done[id(o.source)] for o in node.operands])
        else:
            done[id(node)] = ring.visit(node, done)
    return tuple(done[id(r)] for r in roots), count


class RunningState:
    """A softmax around a ring of sites."""

    def __init__(self, softmax: Softmax, found: Sequence[Member], sites: int) -> None:
        self._softmax = softmax
        self._members = {id(m.origin): m for m in found}
        self._sums = {id(s.origin): s for s in softmax.sums}
        self._rounds = Rounds(self._members[id(softmax.top)], found, sites)
        self._computed: dict[Round, dict[int, EinSum]] = {r: {} for r in self._rounds.worked}
        self._factors: dict[Round, tuple[EinSum, EinSum]] = {}
        self._totals: dict[int, list[EinSum]] = {}
        """By sum its total over all rounds, for each half of the queries."""

    def visit(self, node: EinSum, done: Mapping[int, Node]) -> Node:
        """Computes a node of the softmax in each round; returns its replacement for other nodes."""
        m = self._members[id(node)]
        of = self._sums.get(id(node))
        if of is not None and of.divisor is not None:
            m = replace(m, node=undivided(m.node, of.divisor[0]))
        for r, inside in self._computed.items():
            top = inside.get(id(self._softmax.top)) if self._has_later(r) else None
            inside[id(node)] = self._rounds.node(m, r, inside, done, top)
        if node is self._softmax.top:
            return self._gathered(m, self._maxima(m))
        if of is None:
            return node  # other nodes do not read it
        totals = self._totals[id(node)] = self._summed(m, of.rows)
        if of.divisor is not None:
            divisors = self._totals[id(of.divisor[0])]
            totals = [
                _quotient(t, z, (self._rounds.site, *of.divisor[1]))
                for t, z in zip(totals, divisors, strict=True)
            ]
        return self._gathered(m, totals)

    def _of_half(self, half: int) -> list[Round]:
        return [r for r in self._rounds.worked if r.queries == half]

    def _has_later(self, r: Round) -> bool:
        """True if the queries of a round have other rounds, whose maximum may be greater."""
        return len(self._of_half(r.queries)) > 1

    # Merging

    def _maxima(self, m: Member) -> list[EinSum]:
        """For each half of the queries the maximum of all rounds; also computes the factors."""
        maxima = []
        for half in range(self._rounds.queries.halves):
            first, *later = self._of_half(half)
            running = self._computed[first][id(m.origin)]
            for r in later:
                new = self._computed[r][id(m.origin)]
                merged = _greater(running, new)
                is_last = r is later[-1]
                self._factors[r] = (
                    _factor(running, merged, is_last=is_last),
                    _factor(new, merged, is_last=is_last),
                )
                running = merged
            maxima.append(running)
        return maxima

    def _summed(self, m: Member, rows: tuple[str, ...]) -> list[EinSum]:
        """For each half of the queries the sum of all rounds."""
        totals = []
        for half in range(self._rounds.queries.halves):
            first, *later = self._of_half(half)
            running = self._computed[first][id(m.origin)]
            labels = (self._rounds.site, *rows)
            for r in later:
                old, new = self._factors[r]
                running = _rescaled(running, old, self._computed[r][id(m.origin)], new, labels)
            totals.append(running)
        return totals

    # Results

    def _gathered(self, m: Member, halves: Sequence[EinSum]) -> EinSum:
        """The values of all queries, from the halves of each site."""
        parts, site = self._rounds.queries, self._rounds.site
        source = halves[0] if len(halves) == 1 else self._stacked(halves)
        axis, labels = m.node.axis(m.query), tuple(m.node.keys)
        taken = [*labels, site]
        names = [fresh(x, taken) for x in (site, "half", "place")]
        owner = parts.owner(Label(m.query))
        bounds = [(0, parts.sites), (0, parts.halves), (0, parts.length)]
        derived = [Axis(x, *b, define) for x, b, define in zip(names, bounds, owner, strict=True)]
        if len(halves) == 1:
            del names[1], derived[1]
        read = [names[-1] if x == m.query else x for x in labels]
        free = [axis if x == m.query else halves[0].axis(x) for x in labels]
        operand = Operand(source, (*names[:-1], *read))
        outputs = tuple(
            Output(f.name, (Value(0, f.name, f.dtype),), f.dtype)
            for f in source.schema.fields
            if f.name != PRESENT
        )
        outputs += _presence(source)
        return EinSum((*free, *derived), (operand,), exists(source, 0), labels, outputs)

    def _stacked(self, halves: Sequence[EinSum]) -> EinSum:
        """Both halves of the queries of each site, under another key."""
        first = halves[0]
        half = fresh("half", first.keys)
        of_first = Call("eq", (Label(half), bigint(0)), DType.BOOLEAN)
        (name, dtype) = _value(first)
        values = tuple(Value(n, name, dtype) for n in range(2))
        there = [exists(h, n) for n, h in enumerate(halves)]
        guard: Expr = TRUE
        if any(t != TRUE for t in there):
            guard = Call("if", (of_first, *there), DType.BOOLEAN)
        keys = (first.keys[0], half, *first.keys[1:])
        axes = (*(first.axis(k) for k in first.keys), Axis(half, 0, 2))
        chosen = Output(name, (Call("if", (of_first, *values), dtype),), dtype)
        flags = next((f for h in halves if (f := _presence(h))), ())
        return EinSum(
            axes,
            tuple(Operand(h, first.keys) for h in halves),
            guard,
            keys,
            (chosen, *flags),
            first.hint,
        )


def _value(node: EinSum) -> tuple[str, DType]:
    """The name and the type of the only value of a node."""
    (name, dtype) = next((o.name, o.dtype) for o in node.outputs if o.name != PRESENT)
    return name, dtype


def _presence(node: EinSum) -> tuple[Output, ...]:
    """The flag of a map whose guard says where the points of a node exist."""
    return (Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"),) if node.schema.has(PRESENT) else ()


def _read(node: EinSum, number: int, nothing: float) -> Expr:
    """The value of an operand; another one where its point does not exist."""
    name, dtype = _value(node)
    own, there = Value(number, name, dtype), exists(node, number)
    return own if there == TRUE else Call("if", (there, own, Const(nothing, dtype)), dtype)


def _map(
    operands: Sequence[tuple[EinSum, tuple[str, ...]]], of: Sequence[EinSum], value: Expr
) -> EinSum:
    """A map over nodes of rounds, which exists where one of some operands does.

    Args:
        operands: The nodes with the labels of their keys; the first one has all labels.
        of: The first of them, one of which must exist.
        value: The value of each point.
    """
    first = operands[0][0]
    name, dtype = _value(first)
    return EinSum(
        tuple(first.axis(k) for k in first.keys),
        tuple(Operand(node, labels) for node, labels in operands),
        disj(*(exists(node, n) for n, node in enumerate(of))),
        first.keys,
        (Output(name, (value,), dtype), *_presence(first)),
        hint_over(first.hint, first.keys),
    )


def _greater(a: EinSum, b: EinSum) -> EinSum:
    """The greater one of two maxima."""
    _, dtype = _value(a)
    greater = Call("greatest", (_read(a, 0, -math.inf), _read(b, 1, -math.inf)), dtype)
    return _map([(a, a.keys), (b, a.keys)], (a, b), greater)


def _factor(old: EinSum, new: EinSum, *, is_last: bool) -> EinSum:
    """The factor exp(m - m') of sums with the maximum m, where m' takes its place.

    A maximum of -infinity has no difference from itself: before the last round the factor is then
    0, because a later round may have scores.
    """
    _, dtype = _value(old)
    shift = _read(new, 1, 0.0)
    shift = shift if is_last else unless_empty(shift)
    power = Call("sub", (_read(old, 0, -math.inf), shift), dtype)
    node = _map([(old, old.keys), (new, old.keys)], (), Call("exp", (power,), dtype))
    return replace(node, guard=TRUE, outputs=node.outputs[:1])


def _rescaled(a: EinSum, of_a: EinSum, b: EinSum, of_b: EinSum, rows: tuple[str, ...]) -> EinSum:
    """The sum of two sums times their factors."""
    _, dtype = _value(a)
    factors = (Value(n, *_value(f)) for n, f in ((2, of_a), (3, of_b)))
    terms = (
        Call("mul", (_read(node, n, 0.0), factor), dtype)
        for (n, node), factor in zip(enumerate((a, b)), factors, strict=True)
    )
    operands = [(a, a.keys), (b, a.keys), (of_a, rows), (of_b, rows)]
    return _map(operands, (a, b), Call("add", tuple(terms), dtype))


def _quotient(total: EinSum, divisor: EinSum, labels: tuple[str, ...]) -> EinSum:
    """A sum divided by another one."""
    _, dtype = _value(total)
    quotient = Call("div", (Value(0, *_value(total)), Value(1, *_value(divisor))), dtype)
    node = _map([(total, total.keys), (divisor, labels)], (total,), quotient)
    return replace(node, guard=conj(exists(total, 0), exists(divisor, 1)))


RING_KEYS = Rule(
    "ring-keys",
    "⊕ exp(x - m) · v = ⊕_r exp(m_r - m) · ⊕_{keys of (s + r) mod n} exp(x - m_r) · v at site s",
    graph=ring_keys,
)
