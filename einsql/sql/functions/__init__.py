"""The functions that statements may call, by name and syntax node."""
