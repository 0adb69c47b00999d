"""Derivatives of traced functions where their formulas meet, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import combinations, spread

torch = pytest.importorskip("torch", reason="compares with PyTorch's derivatives")
functional = torch.nn.functional

POINTS = np.array([-800, -20, -3, -1, -0.5, -0.0, 0, 0.5, 1, 3, 9.75, 10, 19.9, 20, 20.1, 800])

SMOOTH: dict[str, Callable[..., Any]] = {
    "softplus": functional.softplus,
    "softplus of β": lambda x: functional.softplus(x, 2.0, 20.0),
    "logsigmoid": functional.logsigmoid,
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": functional.celu,
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "logaddexp2": lambda x: torch.logaddexp2(torch.zeros_like(x), x),
    "log1p": lambda x: torch.log1p(torch.exp(-x.abs())),
    "silu": functional.silu,
    "mish": functional.mish,
}


class Total(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is an Any here
    """The sum of what a function gives."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: Any) -> Any:
        return self.fn(*inputs).sum()


@pytest.mark.parametrize(("name", "dtype"), spread(combinations(SMOOTH, ["float32", "float64"]), 8))
def test_derivatives_are_those_of_pytorch(name: str, dtype: str) -> None:
    x = torch.tensor(POINTS.astype(dtype), requires_grad=True)
    Total(SMOOTH[name])(x).backward()
    traced = einsql.trace(Total(SMOOTH[name]), x.detach())
    _, found = traced.gradient()(x.detach())
    (slope,) = found.values()
    np.testing.assert_allclose(slope, x.grad.numpy(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_arguments_of_logaddexp_get_their_part(dtype: str) -> None:
    a, b = (m.ravel().astype(dtype) for m in np.meshgrid(POINTS, POINTS))
    x, y = (torch.tensor(array, requires_grad=True) for array in (a, b))
    torch.logaddexp(x, y).sum().backward()
    traced = einsql.trace(lambda a, b: np.logaddexp(a, b).sum(), a, b)
    _, found = traced.gradient("a", "b")(a, b)
    np.testing.assert_allclose(found["a"], x.grad.numpy(), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found["b"], y.grad.numpy(), rtol=2e-6, atol=1e-7)
    assert set(found["a"][a == b]) == set(found["b"][a == b]) == {0.5}


def test_logaddexp_of_what_is_equal_neither_overflows_nor_rounds() -> None:
    a = np.array([1e308, 1.7e308, -1.7e308, 5e-324, 0.0, np.inf, -np.inf, np.nan, 3.3])
    for b in (a, a.copy()):
        with np.errstate(invalid="ignore"):  # of the NaN
            wanted = np.logaddexp(a, b)
        np.testing.assert_array_equal(einsql.trace(np.logaddexp, a, b)(a, b), wanted)
