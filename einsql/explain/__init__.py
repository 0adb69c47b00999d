"""Reports of plans and their renderers: text, JSON, SVG and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.moved import moved_attribute

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return moved_attribute(__name__, name)
