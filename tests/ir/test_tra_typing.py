"""Mistakes in tensor-relational plans: each has its error, which names keys and a way out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from einsql import tra
from einsql.errors import DataError, Error, IntegrityError, InterfaceError, ProgrammingError

U = np.arange(16).reshape(4, 4)
A = tra.scan(U, (2, 2))
X = np.arange(35.0).reshape(7, 5) / 2
Y = np.arange(15.0).reshape(5, 3) / 4


def holes() -> tra.Relation:
    return A.filter(lambda a, b: a != b)


MISTAKES: dict[str, tuple[Callable[[], object], type[Error], str]] = {
    "uniqueness": (
        lambda: A.rekey(lambda a, b: a + b),
        IntegrityError,
        "ReKey turns the keys <0, 1> and <1, 0> both into <1>",
    ),
    "negative": (lambda: A.rekey(lambda a, b: (a - b, b)), IntegrityError, "<-1, 1>; keys run"),
    "sparse": (lambda: A.rekey(lambda a, b: (a, b * 10**12)), IntegrityError, "into <0, 10000"),
    "no relation": (
        lambda: A.join(U, (), (), tra.add),  # type: ignore[arg-type]  # the mistake
        InterfaceError,
        "not a ndarray",
    ),
    "far holes": (
        lambda: A.rekey(lambda a, b: (a * 10**6, b * 10**6)).numpy(),
        IntegrityError,
        "<0, 1>, <0, 2>, <0, 3>, … is missing",
    ),
    "array with holes": (lambda: holes().numpy(), IntegrityError, "<0, 0>, <1, 1> is missing"),
    "repartition with holes": (
        lambda: holes().repartition((1, 1)), IntegrityError, "Repartition needs every key"),
    "stack with holes": (
        lambda: holes().stack(0, 0), IntegrityError, "Stack needs every key, but <0, 0> is missing"
    ),
    "bounds": (
        lambda: A.join(tra.scan(U, (4, 1)), (1,), (0,), tra.matmul),
        ProgrammingError,
        "key 0 of operand 1 takes 4 values, the keys it joins take 2",
    ),
    "extents": (
        lambda: tra.scan(X, (1, 2)).join(
            tra.scan(Y, cuts=[(0, 2, 5), (0, 3)]), (1,), (0,), tra.matmul
        ),
        ProgrammingError,
        "axes of 3 and 2 elements as 'j' under the key <0, 0, 0>",
    ),
    "unpaired": (lambda: A.join(A, (0, 1), (0,), tra.add), ProgrammingError, "pairs 2 keys"),
    "no key": (lambda: A.join(A, (2,), (0,), tra.add), ProgrammingError, "key 2 of the left"),
    "twice": (lambda: A.join(A, (0, 0), (0, 1), tra.add), ProgrammingError, "left operand twice"),
    "rank": (lambda: A.aggregate(()).numpy(), ProgrammingError, "0 key dimensions for arrays of"),
    "order": (
        lambda: tra.scan(X, (3, 2)).rekey(lambda a, b: (b, a)).numpy(),
        ProgrammingError,
        "key 0 to cut axis 0, but its extent follows key 1",
    ),
    "group key": (lambda: A.aggregate((2,)), ProgrammingError, "key dimension 2, there is 0 to 1"),
    "group twice": (lambda: A.aggregate((1, 1)), ProgrammingError, "a key twice: <1, 1>"),
    "group op": (lambda: A.aggregate((1,), "arg_min"), ProgrammingError, "reduces by arg_min"),
    "group kernel": (lambda: A.aggregate((1,), tra.matmul), ProgrammingError, "by a kernel"),
    "group by name": (
        lambda: A.aggregate("i"),  # type: ignore[arg-type]  # the mistake
        ProgrammingError,
        "numbers dimensions",
    ),
    "group type": (lambda: A.aggregate((1,), "bool_or"), ProgrammingError, "BIGINT by bool_or"),
    "uneven aggregated": (
        lambda: tra.scan(X, (3, 2)).aggregate((0,)),
        ProgrammingError,
        "Aggregate would lose the key that array dimension 1 is cut by: its blocks have 2 to 3",
    ),
    "uneven merged": (
        lambda: tra.scan(np.ones((3, 3)), (2, 2)).rekey(lambda a, b: ((a + b) % 2, b)),
        ProgrammingError,
        "ReKey would lose the key that array dimension 0 is cut by",
    ),
    "uneven stacked": (
        lambda: tra.scan(X, (3, 2)).stack(0, 1), ProgrammingError, "arrays of 3 and 2 elements in"),
    "tile size": (lambda: A.tile(0, 0), ProgrammingError, "size of at least 1, not 0"),
    "tile dimension": (lambda: A.tile(2, 1), ProgrammingError, "array dimension 2, there is"),
    "tile of uneven": (
        lambda: tra.scan(np.ones(7), cuts=[(0, 3, 7)]).tile(0, 2),
        ProgrammingError,
        "Tile would lose the key",
    ),
    "stack key": (lambda: A.stack(2, 0), ProgrammingError, "key dimension 2, there is 0 to 1"),
    "parts": (lambda: A.repartition((5, 1)), ProgrammingError, "4 elements into 5 parts"),
    "no parts": (lambda: A.repartition((0, 1)), ProgrammingError, "<0, 1> parts"),
    "few parts": (lambda: tra.scan(U, (2,)), ProgrammingError, "rank 2 into <2> parts"),
    "bad cut": (
        lambda: tra.scan(U, cuts=[(0, 3), (0, 4)]), ProgrammingError, "a cut ascends from 0 to 4"),
    "parts and cuts": (
        lambda: tra.scan(U, (1, 1), cuts=[(0, 4), (0, 4)]), ProgrammingError, "not both"),
    "kernel rank": (
        lambda: A.transform(tra.einsum("ijk->i")), ProgrammingError, "names 3 axes of an operand"),
    "kernel operands": (
        lambda: A.transform(tra.matmul), ProgrammingError, "has 2 operands, but 1 are given"),
    "kernel function": (
        lambda: tra.einsum("ij->ij", combine="expp"), ProgrammingError, 'Did you mean "exp"?'),
    "kernel reduction": (
        lambda: tra.einsum("ij->i", reduce="mean"), ProgrammingError, "reduces by mean"),
    "kernel types": (
        lambda: A.transform(tra.einsum("ij->i", reduce="bool_or")), ProgrammingError, "BIGINT by"),
    "function arity": (lambda: A.filter(lambda a: a == 0), ProgrammingError, "2 arguments"),
    "no condition": (lambda: A.filter(lambda a, b: a + b), ProgrammingError, "not BIGINT"),
    "no integer": (lambda: A.rekey(lambda a, b: (a / 2, b)), ProgrammingError, "not DOUBLE"),
    "not a number": (lambda: A.rekey(lambda a, b: ("a", b)), ProgrammingError, "not a number"),
    "arrays": (
        lambda: A.transform(lambda x: np.ones(2) * x), ProgrammingError, "cannot trace its"),
    "no such function": (lambda: A.transform("expp"), ProgrammingError, 'Did you mean "exp"?'),
    "great integer": (
        lambda: A.transform(lambda x: x + 2**70), DataError, "does not fit BIGINT"),
    "chained": (
        lambda: A.filter(lambda a, b: 0 <= a < 1), ProgrammingError, "with &, | and ~"),
    "untraceable": (lambda: A.rekey(lambda a, b: range(a)), ProgrammingError, "cannot trace"),
    "float division": (
        lambda: tra.scan(X).transform(tra.map(lambda x: x // 2)), ProgrammingError, "np.floor"),
    "key by zero": (lambda: A.rekey(lambda a, b: (a // b, b)), DataError, "in a function of keys"),
    "overflow": (
        lambda: tra.scan(np.full((2, 1), 2**62), (2, 1)).aggregate(()).blocks(),
        DataError,
        "Overflow in addition of BIGINT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(name: str) -> None:
    act, kind, words = MISTAKES[name]
    with pytest.raises(kind) as caught:
        act()
    assert words in str(caught.value)
