"""The rounds of a ring: the nodes of a softmax over a part of the queries and a part of the keys.

Label `ring` numbers the sites. The parts of an operand pass from site to site by a chain of maps,
each of which reads the part of the next site from the map before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    bigint,
    conj,
    conjuncts,
    labels_of,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import fresh, map_exprs, substitute, view
from einsql.ir.einsum.points import points_within
from einsql.ir.hints import Ring
from einsql.optimizer.rewrite.parts.softmax import Softmax, defines
from einsql.optimizer.rewrite.parts.split_keys import defined_as, pattern, shifted

SITE = "ring"
"""The wanted name of the label of the sites of a ring."""
BALANCED = 1.05
"""The greatest work of a site, as a multiple of the mean, for which its part is one interval."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a label's values at the sites of a ring.

    There are `sites * halves` parts of equal length, of which the last ones may be shorter. Site s
    has the part s, and with two halves also the part that has as many parts behind it.

    Attributes:
        axis: The axis of the label.
        sites: The number of sites.
        halves: The number of parts of a site, 1 or 2.
    """

    axis: Axis
    sites: int
    halves: int

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.sites * self.halves

    @property
    def length(self) -> int:
        """The number of values of a part."""
        return -(-self.axis.extent // self.count)

    @property
    def is_ragged(self) -> bool:
        """True if the last parts are shorter than the others."""
        return self.count * self.length > self.axis.extent

    def value(self, half: int, site: Expr, place: Expr) -> Expr:
        """The value of the label at a place of a part of a site."""
        first = _times(site, self.length)
        if half == 0:
            return _plus(_add("add", first, place), self.axis.lo)
        return _add("sub", _plus(place, (self.count - 1) * self.length + self.axis.lo), first)

    def owner(self, value: Expr) -> tuple[Expr, Expr, Expr]:
        """The site, the half, and the place in its part, of a value of the label."""
        at = _plus(value, -self.axis.lo)
        part = _by("idiv", at, self.length)
        place = _by("mod", at, self.length)
        if self.halves == 1:
            return part, bigint(0), place
        behind = _add("sub", bigint(self.count - 1), part)
        near = Call("least", (part, behind), DType.BIGINT)
        site = Call("least", (near, bigint(self.sites - 1)), DType.BIGINT)
        return site, _by("idiv", part, self.sites), place


def turned(site: Expr, by: int, sites: int) -> Expr:
    """The site that is some places farther on a ring."""
    return _by("mod", _plus(site, by), sites) if by else site


def _add(fn: str, a: Expr, b: Expr) -> Expr:
    return Call(fn, (a, b), DType.BIGINT)


def _plus(a: Expr, number: int) -> Expr:
    if number == 0:
        return a
    return _add("add" if number > 0 else "sub", a, bigint(abs(number)))


def _times(a: Expr, number: int) -> Expr:
    return a if number == 1 else _add("mul", a, bigint(number))


def _by(fn: str, a: Expr, number: int) -> Expr:
    return Call(fn, (a, bigint(number)), DType.BIGINT)


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a softmax, with the labels of its keys and queries.

    Attributes:
        origin: The node of the graph.
        node: The node, of which a sum reads the weights themselves and is not divided.
        along: The label of the keys.
        query: The label of the queries.
    """

    origin: EinSum
    node: EinSum
    along: str
    query: str


def members(softmax: Softmax, sites: int) -> list[Member] | None:
    """The nodes of a softmax with the labels of its keys and queries.

    The label of the queries is a key of the maximum that the keys and values do not have: their
    parts are read by all queries. Of several such labels the one with a condition on the keys is
    taken, as in a causal mask, else the longest one.

    Returns:
        None if there is no such label with a value for each site.
    """
    candidates = [c for k in softmax.top.keys if (c := _candidate(softmax, k, sites)) is not None]
    if not candidates:
        return None
    return min(candidates, key=lambda c: (c.fixed, not c.is_masked, -c.extent)).members


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A label that may be that of the queries.

    Attributes:
        members: The nodes with the label.
        fixed: The elements of operands that have both the label and the keys.
        is_masked: Whether a condition compares the label and the keys.
        extent: The number of its values.
    """

    members: list[Member]
    fixed: int
    is_masked: bool
    extent: int


def _candidate(softmax: Softmax, key: str, sites: int) -> _Candidate | None:
    domain = _spread(softmax, key)
    if domain is None:
        return None
    axes = [m.node.axis(m.query) for m in domain]
    extent = axes[0].extent
    if len({(a.lo, a.hi) for a in axes}) > 1 or extent < sites:
        return None
    inside = {id(m.origin) for m in domain} | {id(m.node) for m in domain}
    fixed, passed, is_masked = 0, 0, False
    for m in domain:
        own = {m.query, m.along}
        if m.query not in m.node.keys or m.node.axis(m.query).define is not None:
            return None
        if any(own & labels_of(e) for e in defines(m.node)):
            return None
        is_masked = is_masked or any(own <= labels_of(e) for e in conjuncts(m.node.guard))
        for o in m.node.operands:
            if id(o.source) not in inside and m.along in o.labels:
                size = prod(k.extent for k in o.source.schema.keys)
                fixed += size if m.query in o.labels else 0
                passed += size if m.query not in o.labels else 0
    return _Candidate(domain, fixed, is_masked, extent) if passed else None


def _spread(softmax: Softmax, key: str) -> list[Member] | None:
    """The nodes that have a key of the maximum, with its label; None if others than scores lack it.

    Nodes pass the label to each other where one reads the other.
    """
    weights = [] if softmax.weights is None else [softmax.weights]
    own = [(n, n) for n in (*softmax.inner, softmax.top, *weights)]
    own += [(s.origin, s.node) for s in softmax.sums]
    labels = {id(softmax.top): key}
    known = {id(n) for _, n in own}
    for _ in own:
        for _, node in own:
            for o in node.operands:
                if id(o.source) not in known or not isinstance(o.source, EinSum):
                    continue
                for inner, outer in zip(o.source.keys, o.labels, strict=True):
                    if labels.get(id(o.source)) == inner:
                        labels.setdefault(id(node), outer)
                    elif labels.get(id(node)) == outer:
                        labels.setdefault(id(o.source), inner)
    required = [softmax.top, *weights, *(s.node for s in softmax.sums)]
    if any(id(n) not in labels for n in required):
        return None
    return [
        Member(origin, node, softmax.along[id(origin)], labels[id(node)])
        for origin, node in own
        if id(node) in labels
    ]


@dataclass(frozen=True, slots=True)
class Round:
    """The work of all sites on a part of the queries and a part of the keys.

    Attributes:
        turn: The number of sites that the keys have passed.
        keys: The half of the keys.
        queries: The half of the queries.
    """

    turn: int
    keys: int
    queries: int


class Rounds:
    """The rounds of a softmax.

    Attributes:
        site: The label of the sites.
        queries: The parts of the queries.
        keys: The parts of the keys.
        worked: The rounds in which a site has work, in their order.
    """

    def __init__(self, top: Member, found: Sequence[Member], sites: int) -> None:
        """Divides the queries and the keys.

        Args:
            top: The node of the maximum.
            found: The nodes of the softmax.
            sites: The number of sites.
        """
        self.site = fresh(SITE, (a.label for m in found for a in m.node.axes))
        self._sites = sites
        one = _division(top, sites, 1)
        if _imbalance(top, *one) > BALANCED:
            two = _division(top, sites, 2)
            if min(p.axis.extent for p in two) >= two[0].count:
                one = min(one, two, key=lambda parts: _imbalance(top, *parts))
        self.queries, self.keys = one
        worked = [r for r in _rounds(*one) if any(_work(top, *one, r))]
        idle = set(range(self.keys.halves)) - {r.queries for r in worked}
        self.worked = [*(Round(0, 0, half) for half in sorted(idle)), *worked]
        self._blocks: dict[object, EinSum] = {}

    def node(
        self,
        m: Member,
        r: Round,
        inside: Mapping[int, EinSum],
        done: Mapping[int, Node],
        top: EinSum | None,
    ) -> EinSum:
        """A node of the softmax in a round.

        Args:
            m: The node.
            r: The round.
            inside: The nodes of the round so far, by the ids of the original nodes.
            done: The nodes outside of the softmax, by the ids of the original nodes.
            top: The node of the round's maximum, with 0 in the place of -infinity where it is
                subtracted; None to subtract it as it is.
        """
        site = Label(self.site)
        axes, values, within = _places(m, r, site, self.queries, self.keys)
        operands = [
            self._operand(m, r, o, done)
            if id(o.source) not in inside
            else Operand(inside[id(o.source)], (self.site, *o.labels))
            for o in m.node.operands
        ]
        new = map_exprs(m.node, lambda e: shifted(substitute(e, values), operands, top))
        return replace(
            new,
            axes=(self._site_axis, *defined_as(axes, new.axes)),
            operands=tuple(operands),
            guard=conj(new.guard, within),
            keys=(self.site, *m.node.keys),
            hint=((self.site, self._sites), *(h for h in m.node.hint if h[0] not in values)),
        )

    @property
    def _site_axis(self) -> Axis:
        return Axis(self.site, 0, self._sites)

    # Operands from outside of the softmax

    def _operand(self, m: Member, r: Round, operand: Operand, done: Mapping[int, Node]) -> Operand:
        """The part of an operand that a site reads in a round."""
        source = done[id(operand.source)]
        has_query, has_key = m.query in operand.labels, m.along in operand.labels
        if not has_query and not has_key:
            return Operand(source, operand.labels)
        labels = tuple(dict.fromkeys(operand.labels))
        known = (
            id(operand.source),
            tuple((a.lo, a.hi) for a in map(m.node.axis, labels)),
            pattern(operand, m.query),
            pattern(operand, m.along),
        )
        if has_key and not has_query:
            block = self._passed(m, r, Operand(source, operand.labels), known)
        else:
            here = r if has_key else replace(r, turn=0, keys=0)
            block = self._part(m, here, Operand(source, operand.labels), known)
        return Operand(block, (self.site, *labels))

    def _passed(self, m: Member, r: Round, operand: Operand, known: object) -> EinSum:
        """The part of the keys that a site has after some turns of the ring."""
        block = self._part(m, replace(r, turn=0, queries=0), operand, known)
        for turn in range(1, r.turn + 1):
            key = known, r.keys, turn
            if key not in self._blocks:
                self._blocks[key] = self._turn(block)
            block = self._blocks[key]
        return block

    def _turn(self, block: EinSum) -> EinSum:
        """The blocks of the next sites."""
        taken = [a.label for a in block.axes]
        following = fresh("from", taken)
        define = turned(Label(self.site), 1, self._sites)
        free = [replace(block.axis(k), define=None) for k in block.keys]
        axes = [*free, Axis(following, 0, self._sites, define)]
        shown = view(Operand(block, (following, *block.keys[1:])), axes, block.keys)
        return replace(shown, hint=((self.site, Ring(self._sites)),))

    def _part(self, m: Member, r: Round, operand: Operand, known: object) -> EinSum:
        """An operand keyed by sites, which have their parts of the queries or keys."""
        key = known, r
        if key in self._blocks:
            return self._blocks[key]
        labels = tuple(dict.fromkeys(operand.labels))
        free = {x: replace(m.node.axis(x), define=None) for x in labels}
        lengths = {m.query: self.queries, m.along: self.keys}
        _, values, _ = _places(m, r, Label(self.site), self.queries, self.keys)
        axes: list[Axis] = [self._site_axis]
        renamed: dict[str, str] = {}
        for x, a in free.items():
            if x not in lengths:
                axes.append(a)
                continue
            axes.append(Axis(x, 0, lengths[x].length))
            renamed[x] = fresh(x, [*labels, self.site, *renamed.values()])
        for x, new in renamed.items():
            a = free[x]
            place = values[x]
            if x == m.query and self.queries.is_ragged:  # rows of queries that do not exist
                place = Call("least", (place, bigint(a.hi - 1)), DType.BIGINT)
            axes.append(Axis(new, a.lo, a.hi, place))
        read = Operand(operand.source, tuple(renamed.get(x, x) for x in operand.labels))
        shown = view(read, axes, (self.site, *labels))
        self._blocks[key] = replace(shown, hint=((self.site, self._sites),))
        return self._blocks[key]


def _division(top: Member, sites: int, halves: int) -> tuple[Parts, Parts]:
    """The parts of the queries and of the keys."""
    axes = top.node.axis(top.query), top.node.axis(top.along)
    return Parts(axes[0], sites, halves), Parts(axes[1], sites, halves)


def _rounds(queries: Parts, keys: Parts) -> list[Round]:
    """All rounds, in the order in which keys arrive."""
    turns, halves = range(keys.sites), range(keys.halves)
    return [Round(*numbers) for numbers in product(turns, halves, halves)]


def _imbalance(top: Member, queries: Parts, keys: Parts) -> float:
    """The points of the busiest site as a multiple of the mean."""
    each = zip(*(_work(top, queries, keys, r) for r in _rounds(queries, keys)), strict=True)
    points = [sum(of_site) for of_site in each]
    total = sum(points)
    return max(points) * len(points) / total if total else 1.0


def _work(top: Member, queries: Parts, keys: Parts, r: Round) -> list[int]:
    """The points of each site in a round."""
    points = []
    for site in range(keys.sites):
        axes, values, within = _places(top, r, bigint(site), queries, keys)
        terms = [t for t in conjuncts(top.node.guard) if not operands_of(t)]
        guard = conj(*(substitute(t, values) for t in terms), within)
        points.append(points_within(EinSum(tuple(axes), (), guard, (), ())))
    return points


def _places(
    m: Member, r: Round, site: Expr, queries: Parts, keys: Parts
) -> tuple[list[Axis], dict[str, Expr], Expr]:
    """The axes of a node over places of parts, the values of its labels, and where keys exist."""
    query = queries.value(r.queries, site, Label(m.query))
    key = keys.value(r.keys, turned(site, r.turn, keys.sites), Label(m.along))
    lengths = {m.query: queries.length, m.along: keys.length}
    axes = [Axis(a.label, 0, lengths[a.label]) if a.label in lengths else a for a in m.node.axes]
    exists: Expr = TRUE
    if keys.is_ragged:
        exists = Call("le", (key, bigint(keys.axis.hi - 1)), DType.BOOLEAN)
    return axes, {m.query: query, m.along: key}, exists
