"""Names in reach of an expression: relations, their columns, and the scopes of FROM."""
