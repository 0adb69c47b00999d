"""The room of SQL: text to bound EinSum graphs.

From bottom to top: `functions/` names what a statement may call, `parser/` reads text, `typing/`
types expressions, `parameters/` has what is known at run time, `scope/` resolves names, `macros/`
expands calls, `binder/` binds SELECTs over elements and `tiles/` those over tiles.
`query_binder.py` joins them into the binder of a statement.
"""
