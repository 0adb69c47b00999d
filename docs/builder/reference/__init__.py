"""Pages of the reference that are written from the catalogs of the code."""

from __future__ import annotations

from docs.builder.reference import errors, functions, grammar, python_api, settings
from docs.builder.source import ROOT

FOLDER = ROOT / "docs" / "reference"
PAGES = {
    "functions.md": functions.page,
    "settings.md": settings.page,
    "errors.md": errors.page,
    "grammar.md": grammar.page,
    "python.md": python_api.page,
}
"""The pages by name, each with the function that returns its text."""
