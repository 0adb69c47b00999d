"""The four languages of a query, each a package with nodes, typing, printer and interpreter."""
