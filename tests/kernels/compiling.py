"""What tests of compiled kernels share: how nodes are drawn, and a cache of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

PROPERTY = settings(
    phases=(Phase.explicit, Phase.generate),  # shrinking would compile hundreds of kernels
)


@pytest.fixture(autouse=True, scope="module")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are compiled anew, and kept for the other tests of this run and all its workers."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSQL_CACHE_DIR", str(run / "kernels"))
        yield
