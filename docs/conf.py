"""Sphinx's configuration of the site; `make docs` builds it into docs/_build/html."""

from pathlib import Path

project = "einsql"
author = "the authors of einsql"
html_title = "einsql"

extensions = ["myst_parser", "docs.builder.extension", "docs.builder.tables"]
exclude_patterns = ["_build", "builder"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

myst_heading_anchors = 4  # links name headings by GitHub's rule

smartquotes = False  # values of settings are shown as they are typed

html_theme = "furo"
html_search_scorer = str(Path(__file__).parent / "builder" / "scorer.js")
html_static_path = ["_static", "../einsql/explain/drawing/graph.css"]
html_css_files = ["graph.css", "site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "github-dark"
