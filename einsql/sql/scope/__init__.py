"""Name resolution in expressions: relations, their columns, and the scopes of FROM."""
