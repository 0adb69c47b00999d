"""EINSUM notation against numpy.einsum, through the one-liner and through SQL."""

from __future__ import annotations

import string

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

EXPRESSIONS = [
    # identities, transposes, sums, traces, diagonals
    "a->a", "ab->ba", "abc->cab", "a->", "ab->a", "ab->b", "ab->", "aa->a", "aa->", "aaa->a",
    "aab->b", "aba->b", "abab->ab", "abba->", "",
    # implicit output
    "ab", "ba", "aa", "ab,bc", "ba,bc", "ab,ab", "cab", "ab,cd", "a,a", "bca,cb",
    # products, dots, outer products, scalars
    "a,a->", "a,b->ab", "a,b->ba", "ab,bc->ac", "ab,cb->ac", "ba,bc->ac", "ab,bc->ca", "ab,ab->ab",
    "ab,ab->", "ab,b->a", "b,ab->a", "ab,cd->abcd", "ab,cd->", ",->", ",a->a", "ab,->ab",
    "a,ab,abc->abc", "a,b,c->abc", "ab,b,a->", "aab,bc->ac", "ab,bcc->ac", "ab,bc,ca->",
    # batches and many labels
    "bij,bjk->bik", "bij,bkj->bki", "bij,jk->bik", "bshd,bthd->bhst", "bhst,bthd->bshd",
    "bjkl,bk->bjl", "bk,bjkl->bjl",
    "abcd,cdef->abef", "abcd,efcd->afbe", "ea,fb,abcd,gc,hd->efgh", "ab,cd,ef->acebdf",
    "abc,abd,abe->cde", "abc,bca,cab->", "ab,bc,cd,de,ef,fg,gh,hi->ai", "a,b,c,d,e,f,g,h->",
    "ab,ab,ab,bc,bc,cd,cd,da->d", "abcdef,bdf->ace", "ijk,ilm,njm,nlk,abc->", "acdf,jbje,gihb,hfac",
    "acdf,jbje,gihb,hfac,gfac,gifabc,hfac", "chd,bde,agbc,hiad,bdi,cgh,agdb",
    "eb,cb,fb->cef", "dd,fb,be,cdb->cef", "bca,cdb,dbf,afc->", "fdf,cdd,ccd,afe->ae",
    # ellipsis
    "...->...", "...a->a...", "a...->...a", "...ab,...bc->...ac", "...a,...a->...", "a...,b->ab...",
    "...ab->...ba", "...aa->...a", "ab...,b...->a...", "...,...->...", "...a,a->...",
]  # fmt: skip
EXTENTS = {letter: (2, 3, 2, 4)[n % 4] for n, letter in enumerate(string.ascii_lowercase)}
DOTS = (2, 3)


def operands(expression: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = []
    for term in expression.partition("->")[0].split(","):
        before, dots, after = term.partition("...")
        shape = [EXTENTS[c] for c in before] + list(DOTS if dots else ())
        shape += [EXTENTS[c] for c in after]
        arrays.append(rng.integers(-4, 5, shape).astype(np.float64) / 4)
    return arrays


@pytest.mark.parametrize("expression", spread(EXPRESSIONS, 28))
def test_agrees_with_numpy_exactly_on_dyadic_data(expression: str) -> None:
    arrays = operands(expression, len(expression))
    expected = np.einsum(expression, *arrays)
    result = einsql.einsum(expression, *arrays)
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)

    con = einsql.connect()
    names = [f"x{n}" for n in range(len(arrays))]
    for name, array in zip(names, arrays, strict=True):
        con.register(name, array)
    cursor = con.execute(f"SELECT * FROM EINSUM('{expression}', {', '.join(names)})")
    assert np.array_equal(cursor.fetch_numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64])
def test_dtypes(dtype: type) -> None:
    a: np.ndarray = np.arange(6).reshape(2, 3).astype(dtype)
    result = einsql.einsum("ij,kj->ik", a, a)
    assert np.array_equal(result, np.einsum("ij,kj->ik", a, a))


def test_axes_of_length_one_stretch() -> None:
    a: np.ndarray = np.ones((1, 3))
    b: np.ndarray = np.arange(12.0).reshape(4, 3)
    assert np.array_equal(einsql.einsum("ij,ij->ij", a, b), np.einsum("ij,ij->ij", a, b))


def test_sums_over_nothing_are_zero() -> None:
    a, b = np.ones((2, 0)), np.ones((0, 3))
    assert np.array_equal(einsql.einsum("ij,jk->ik", a, b), np.zeros((2, 3)))


def test_the_result_is_never_a_view_of_an_argument() -> None:
    a = np.arange(4.0).reshape(2, 2)
    result = einsql.einsum("ij->ji", a)
    result[:] = -1
    assert a[0, 1] == 1.0


def test_long_labels_in_sql() -> None:
    con = einsql.connect()
    q = np.arange(24.0).reshape(1, 2, 3, 4)
    con.register("q", q, ("b", "s", "h", "d"))
    con.register("k", q, ("b", "t", "h", "d"))
    sql = "SELECT * FROM EINSUM('batch s head d, batch t head d -> batch head s t', q, k)"
    assert np.array_equal(con.execute(sql).fetch_numpy(), np.einsum("bshd,bthd->bhst", q, q))


@pytest.mark.parametrize(
    ("expression", "shapes", "reason"),
    [
        ("ij,jk->ik", [(2, 3), (4, 2)], "label 'j' has the extents 3 and 4"),
        ("ijk->i", [(2, 3)], "names 3 axes of an operand of rank 2"),
        ("i->i", [(2, 3)], "names 1 axis of an operand of rank 2"),
        ("ij,jk", [(2, 3)], "has 2 operands, but 1 are given"),
        ("ij->ik", [(2, 3)], "output label 'k' is in no operand"),
        ("ij->ii", [(2, 3)], "given twice"),
        ("i1->i", [(2, 3)], "the label '1'"),
    ],
)
def test_what_does_not_fit_is_refused(
    expression: str, shapes: list[tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(einsql.ProgrammingError, match=reason):
        einsql.einsum(expression, *(np.zeros(s) for s in shapes))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [("i->", (0,)), ("i->i", (3,)), ("ij->", (0, 2)), ("ij->i", (2, 0)), ("ij->ji", (2, 3))],
)
def test_results_are_new_and_writable(spec: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape)
    result = einsql.einsum(spec, array)
    assert result.flags.writeable
    assert not np.may_share_memory(result, array)
    assert np.array_equal(result, np.einsum(spec, array))
