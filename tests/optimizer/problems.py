"""Decomposition problems in einsum notation, for the tests of decomposition."""

import random
from collections.abc import Mapping

from einsql.optimizer.decomposition.problem import Problem, Use, Vertex


class Builder:
    """Adds one operation per call; results are numbers, stored tensors are None."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.vertices: list[Vertex] = []

    def op(self, notation: str, *sources: int | None) -> int:
        left, _, keys = notation.partition("->")
        terms = left.split(",")
        labels = "".join(dict.fromkeys(left.replace(",", "")))
        uses = tuple(
            Use(s, tuple(labels.index(x) for x in t), self._shape(t))
            for t, s in zip(terms, sources, strict=True)
        )
        self.vertices.append(
            Vertex(
                f"r{len(self.vertices)}",
                tuple(labels),
                self._shape(labels),
                uses,
                tuple(labels.index(k) for k in keys),
                self._shape(keys),
                contraction=len(terms) > 1 and set(labels) != set(keys),
            )
        )
        return len(self.vertices) - 1

    def _shape(self, labels: str) -> tuple[int, ...]:
        return tuple(self.extents[x] for x in labels)

    @property
    def problem(self) -> Problem:
        return Problem(tuple(self.vertices))


def chain(extents: Mapping[str, int]) -> Problem:
    """(A · B) + (C · (D · E)) with labels A[i,j] B[j,k] C[i,l] D[l,m] E[m,k]."""
    b = Builder(extents)
    ab = b.op("ij,jk->ik", None, None)
    de = b.op("lm,mk->lk", None, None)
    cde = b.op("il,lk->ik", None, de)
    b.op("ik,ik->ik", ab, cde)
    return b.problem


def random_problem(seed: int, size: int) -> Problem:
    """Operations over six labels, each reading recent results or stored tensors."""
    chance = random.Random(seed)
    extents = {x: chance.choice([3, 4, 8, 16, 30, 64, 100, 128]) for x in "ijklmn"}
    b = Builder(extents)
    results: list[tuple[int, str]] = []

    def pick() -> tuple[int | None, str]:
        if results and chance.random() < 0.75:
            return chance.choice(results[-6:])
        return None, "".join(chance.sample("ijklmn", chance.choice([1, 2, 2, 3])))

    for _ in range(size):
        operands = [pick() for _ in range(1 if chance.random() < 0.25 else 2)]
        labels = "".join(dict.fromkeys("".join(t for _, t in operands)))
        keys = "".join(x for x in labels if chance.random() >= 0.35) or labels[0]
        notation = ",".join(t for _, t in operands) + "->" + keys
        results.append((b.op(notation, *(s for s, _ in operands)), keys))
    return b.problem


def transformer(layers: int, extents: Mapping[str, int]) -> Problem:
    """LLaMA's layers: labels b(atch), s and t (positions), a (width), h, d, f."""
    b = Builder(extents)
    x: int | None = None
    for _ in range(layers):
        norm = b.op("bsa,bs,a->bsa", x, b.op("bsa->bs", x), None)
        q, k, v = (b.op(n, norm, None) for n in ("bsa,ahd->bshd", "bta,ahd->bthd", "bta,ahd->bthd"))
        scores = b.op("bshd,bthd->bhst", q, k)
        shifted = b.op("bhst,bhs->bhst", scores, b.op("bhst->bhs", scores))
        share = b.op("bhst,bhs->bhst", shifted, b.op("bhst->bhs", shifted))
        heads = b.op("bhst,bthd->bshd", share, v)
        middle = b.op("bsa,bsa->bsa", x, b.op("bshd,hda->bsa", heads, None))
        norm = b.op("bsa,bs,a->bsa", middle, b.op("bsa->bs", middle), None)
        gate, up = b.op("bsa,af->bsf", norm, None), b.op("bsa,af->bsf", norm, None)
        x = b.op("bsa,bsa->bsa", middle,
                 b.op("bsf,fa->bsa", b.op("bsf,bsf->bsf", gate, up), None))  # fmt: skip
    return b.problem
