"""`einsql --ui`: a page in the browser with an editor, results, plots and plans.

`serve.py` opens the page, `server.py` answers its requests, `access.py` checks that requests come
from the page, `workbench.py` runs statements, `plots.py` prepares drawings.
"""
