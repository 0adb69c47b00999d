"""Some random losses; `make gradients` compares thousands (docs/reference/gradient.md)."""

from __future__ import annotations

import importlib.util

import pytest

from tests.ir.autodiff.campaign import campaign
from tests.support.samples import sample

SHARE = 15
"""Losses in one test, so that tests can run side by side."""


@pytest.mark.parametrize("seed", sample([0], range(6)))
def test_gradients_are_central_differences(seed: int) -> None:
    report = campaign(SHARE, seed)
    assert not report.findings, report.text()
    assert report.kinks <= report.directions // 10


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="compares with torch")
@pytest.mark.parametrize("seed", sample([100], range(100, 103)))
def test_gradients_are_those_of_torch(seed: int) -> None:
    report = campaign(SHARE, seed, against_torch=True)
    assert not report.findings, report.text()
