"""The room of SQL: text to bound EinSum graphs.

The packages from bottom to top: `functions/` lists the callable functions, `parser/` parses text
and `typing/` types expressions. `parameters/` describes run-time inputs, `scope/` resolves names
and `macros/` expands calls. `binder/` binds SELECTs over elements, and `tiles/` SELECTs over tiles.
`query_binder.py` combines them to the binder of a statement.
"""
