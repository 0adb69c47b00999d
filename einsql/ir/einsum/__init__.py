"""EinSum graphs: what a query computes."""
