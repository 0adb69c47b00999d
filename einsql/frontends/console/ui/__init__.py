"""`einsql --ui`: a page in the browser with an editor, results, plots and plans.

`serve.py` opens the page, `server.py` answers its requests, `access.py` decides who may ask,
`workbench.py` runs statements, `plots.py` prepares drawings.
"""
