"""Writes the generated pages of the reference: python -m docs.builder.reference."""

from __future__ import annotations

import os

from docs.builder.reference import FOLDER, PAGES
from docs.builder.source import ROOT

if __name__ == "__main__":
    os.chdir(ROOT)  # examples name their files from here
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(FOLDER / name)
