"""The experiments in the page's order."""

from __future__ import annotations

PARTS: dict[str, tuple[str, ...]] = {
    "EinDecomp": ("chains", "chains_in_sql", "training"),
    "Tensor-relational algebra": ("matmul", "nearest"),
}
"""Names of experiments' files, by the heading above them."""
