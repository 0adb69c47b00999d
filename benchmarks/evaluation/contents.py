"""The experiments in the page's order."""

from __future__ import annotations

PARTS: dict[str, tuple[str, ...]] = {
    "EinDecomp": ("chains", "chains_in_sql"),
}
"""Names of experiments' files, by the heading above them."""
