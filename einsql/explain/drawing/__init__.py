"""Drawings of plans: an SVG drawing of the graph and a self-contained HTML page."""

from einsql.explain.drawing.page import page, parts
from einsql.explain.drawing.svg import standalone

__all__ = ["page", "parts", "standalone"]
