"""Trees to bound EinSum graphs: names, types, clauses."""
