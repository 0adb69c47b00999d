"""EinSum graphs: the computation of a query."""
