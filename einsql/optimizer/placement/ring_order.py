"""The order of the steps of a ring: round by round, with the transfer of a round behind its work.

A ring is unrolled in the graph, whose order is depth first: the state of one half of the queries in
all rounds precedes that of the other half. Run round by round, the keys of a round are read
together and freed, and one running state exists at a time.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from einsql.ir.einsum.graph import (
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Roots,
    rewrite,
    walk,
)
from einsql.ir.einsum.graph_rewriting import map_exprs, with_sources
from einsql.ir.einsum.rings import is_turn
from einsql.ir.spmd.program import Exchange, Local, Post, Program, reads, reordered


def as_cells(roots: Roots) -> tuple[Roots, dict[int, EinSum]]:
    """The graph of rings as the cells of a round compute it, to find the nodes that run together.

    A cell has one site s. So (s + r) mod n is a number in it, and conditions are affine like those
    with s + r. Results of an earlier round are inputs, because rounds run one after another.

    Returns:
        The roots with all results that later rounds read, and the original of each node by id.
    """
    if not any(isinstance(n, EinSum) and is_turn(n) for n in walk(*roots)):
        return roots, {id(n): n for n in walk(*roots) if isinstance(n, EinSum)}
    done: dict[int, Node] = {}
    originals: dict[int, EinSum] = {}
    passed: dict[int, Node] = {}
    turns: dict[int, int] = {}
    for node in walk(*roots):
        done[id(node)], turns[id(node)] = node, 0
        if not isinstance(node, EinSum):
            continue
        read = [o.source for o in node.operands]
        turns[id(node)] = max((turns[id(s)] for s in read), default=0) + is_turn(node)
        earlier = [isinstance(s, EinSum) and turns[id(s)] < turns[id(node)] for s in read]
        passed |= {
            id(s): done[id(s)] for s, is_earlier in zip(read, earlier, strict=True) if is_earlier
        }
        sources = (
            Input(f"#{id(s)}", s.schema) if is_earlier else done[id(s)]
            for s, is_earlier in zip(read, earlier, strict=True)
        )
        over = with_sources(node, sources)
        ring = {(x, n) for x, n in node.hint if node.axis(x).extent == n}
        done[id(node)] = map_exprs(over, partial(_unwrapped, ring)) if ring else over
        originals[id(done[id(node)])] = node
    return (*(done[id(r)] for r in roots), *passed.values()), originals


def _unwrapped(ring: AbstractSet[tuple[str, int]], e: Expr) -> Expr:
    """An expression with s + r in the place of (s + r) mod n."""

    def visit(e: Expr) -> Expr:
        match e:
            case Call("mod", (Call("add", (Label(x), Const())) as turn, Const() as n)):
                return turn if (x, n.value) in ring else e
        return e

    return rewrite(e, visit)


def by_rounds(program: Program) -> Program:
    """The program with the steps between the first and the last turn of rings round by round."""
    turns = turning(program)
    if not turns:
        return program
    rounds = [0] * len(program.steps)
    for n, step in enumerate(program.steps):
        own = n in turns and isinstance(step, Exchange)
        rounds[n] = max((rounds[s] for s in reads(step)), default=0) + own
    order = sorted(range(len(program.steps)), key=lambda n: (rounds[n], n))
    return reordered(program, order)


def posted(program: Program) -> Program:
    """The program with the exchanges of rings started as soon as their blocks are complete.

    The work on a block overlaps with its transfer to the next site. Both read the block, which the
    exchange then frees.
    """
    steps = program.steps
    ends = {n: t.steps[-1] for t in program.together for n in (*t.steps, *t.links)}
    posts: list[Post] = []
    for n in sorted(turning(program)):
        step = steps[n]
        if isinstance(step, Exchange) and step.nbytes:
            first = max(ends.get(s, s) for s in step.sources) + 1
            if any(isinstance(steps[k], Local) for k in range(first, n)):
                posts.append(Post(n, first))
    return replace(program, posts=tuple(sorted(posts, key=lambda p: (p.before, p.exchange))))


def turning(program: Program) -> set[int]:
    """The steps by which blocks pass from site to site: exchanges, and the maps that read them."""
    turns: set[int] = set()
    for n, step in enumerate(program.steps):
        if isinstance(step, Local) and is_turn(step.node):
            turns.add(n)
            turns.update(s for s in step.operands if isinstance(program.steps[s], Exchange))
    return turns
