"""A plan as a picture: an SVG drawing of its graph, and one self-contained HTML page."""

from einsql.explain.drawing.page import page
from einsql.explain.drawing.svg import standalone

__all__ = ["page", "standalone"]
