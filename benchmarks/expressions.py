"""The Einstein sums that are measured, with extents at which the best peer takes 1 ms or more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expression:
    """An Einstein sum with the extents of its labels.

    Attributes:
        group: What it is an example of.
        spec: The sum in einsum notation.
        extents: The extent of each label, in the order in which they first appear.
    """

    group: str
    spec: str
    extents: tuple[int, ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the operands."""
        terms = self.spec.split("->")[0].split(",")
        labels = dict.fromkeys(x for t in terms for x in t)
        size = dict(zip(labels, self.extents, strict=True))
        return [tuple(size[x] for x in t) for t in terms]

    def __str__(self) -> str:
        return f"{self.group}: {self.spec} {','.join(map(str, self.extents))}"


_CASES: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "gemm": (
        ("ij,jk->ik", (768, 768, 768)),
        ("ji,jk->ik", (700, 900, 800)),
        ("ij,kj->ik", (900, 700, 800)),
        ("ji,kj->ik", (700, 900, 800)),
        ("ij,jk->ki", (900, 700, 800)),
        ("ij,kj->ki", (800, 700, 900)),
    ),
    "skinny": (
        ("ij,jk->ik", (2000, 16, 2000)),
        ("ij,jk->ik", (16, 3000, 3000)),
        ("ij,jk->ik", (3000, 3000, 16)),
        ("ij,kj->ik", (20000, 512, 8)),
        ("ji,jk->ik", (400000, 12, 12)),
        ("ij,jk->ik", (100000, 64, 64)),
        ("ji,jk->ik", (20000, 64, 64)),
    ),
    "batched": (
        ("bij,bjk->bik", (64, 128, 128, 128)),
        ("bij,bkj->bik", (16, 256, 256, 256)),
        ("bji,bjk->bik", (100, 128, 96, 128)),
        ("bij,bjk->bik", (5000, 32, 32, 32)),
        ("bij,bjk->bik", (20000, 16, 16, 16)),
        ("bij,bkj->bik", (2000, 64, 64, 64)),
        ("bij,bjk->bik", (3000, 48, 48, 48)),
        ("bij,bjk->bik", (100000, 4, 4, 4)),
        ("ibj,bjk->ibk", (200, 300, 64, 64)),
        ("ijb,jkb->ikb", (32, 32, 2000, 32)),
        ("bij,jk->bik", (64, 128, 512, 256)),
        ("bij,bik->jk", (64, 256, 192, 256)),
    ),
    "transformer": (
        ("bhqd,bhkd->bhqk", (1, 8, 512, 64, 512)),
        ("bqhd,bkhd->bhqk", (1, 512, 16, 64, 512)),
        ("bhqk,bkhd->bqhd", (1, 16, 512, 512, 64)),
        ("qhd,khd->hqk", (512, 16, 64, 512)),
        ("bsd,dhk->bshk", (2, 512, 512, 8, 64)),
        ("bsd,dhk->bhsk", (2, 512, 512, 8, 64)),
        ("bshk,hkd->bsd", (2, 512, 8, 64, 512)),
        ("bsd,df->bsf", (2, 512, 512, 1024)),
        ("bse,bsd->ed", (4, 512, 512, 512)),
        ("bqhd,bkhd->bhqk", (8, 1, 16, 64, 1024)),
    ),
    "vectors": (
        ("i,i->", (8000000,)),
        ("ij,j->i", (4000, 4000)),
        ("ij,i->j", (4000, 4000)),
        ("i,j->ij", (5000, 5000)),
        ("bi,bi->b", (40000, 256)),
        ("bij,bj->bi", (200, 256, 256)),
        ("bij,bi->bj", (200, 256, 256)),
        ("bi,bj->bij", (6000, 48, 48)),
        ("bij,bij->b", (1000, 100, 100)),
        ("ib,ib->b", (256, 20000)),
    ),
    "one operand": (
        ("ij->i", (4000, 4000)),
        ("ij->j", (4000, 4000)),
        ("ijk->", (300, 300, 300)),
        ("ijk->ik", (300, 200, 200)),
        ("bii->b", (120000, 16)),
        ("ijk->j", (200, 300, 200)),
    ),
    "element-wise": (
        ("ij,ij->", (3000, 3000)),
        ("ijk,ik->ij", (300, 200, 200)),
        ("ijk,jk->ik", (300, 200, 200)),
        ("ij,ij->ij", (3500, 3500)),
        ("ijk,j->ik", (300, 200, 200)),
        ("ij,ji->ij", (2000, 2000)),
    ),
    "many labels": (
        ("abcd,cdef->abef", (24, 24, 24, 24, 24, 24)),
        ("abcd,dbef->acef", (24, 24, 24, 24, 24, 24)),
        ("abcd,cedf->aebf", (24, 24, 24, 24, 24, 24)),
        ("abcd,dcba->", (40, 40, 40, 60)),
        ("abc,cbd->ad", (300, 40, 40, 300)),
        ("abcde,ecf->abdf", (16, 16, 16, 16, 16, 64)),
        ("abcd,be->aecd", (32, 32, 32, 32, 32)),
        ("abcd,ecfd->abef", (30, 20, 20, 30, 30, 20)),
    ),
    "networks": (
        ("ij,jk,kl->il", (600, 600, 600, 600)),
        ("ij,jk,kl,lm->im", (2000, 100, 2000, 100, 800)),
        ("ij,jk,k->i", (4000, 4000, 4000)),
        ("abcd,ea,fb,gc,hd->efgh", (36,) * 8),
        ("ia,ja,ka->ijk", (150, 64, 150, 150)),
        ("ijk,ja,ka->ia", (200, 200, 200, 64)),
        ("aib,bjc,ckd,dle->aijkle", (8, 16, 64, 16, 64, 16, 64, 16, 8)),
        ("aib,cjd,ijkl,bkx->acdlx", (40, 8, 40, 40, 8, 40, 8, 8, 40)),
        ("abc,dbe,afg,dfh->cegh", (32, 16, 32, 32, 32, 16, 32, 32)),
        ("ab,bc,cd,de,ef,fg,gh,ha->", (320,) * 8),
        ("dba,ead,cad->bce", (48, 48, 48, 48, 48)),
        ("ab,ab,c->", (6000, 1500, 1000)),
    ),
}

EXPRESSIONS: tuple[Expression, ...] = tuple(
    Expression(group, spec, extents) for group, cases in _CASES.items() for spec, extents in cases
)
