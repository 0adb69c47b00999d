"""Types, bounds, units, settings and small helpers. No module here knows a graph."""
