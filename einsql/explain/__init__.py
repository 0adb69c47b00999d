"""Reports of plans, and their renderers: text, JSON, SVG, HTML."""
