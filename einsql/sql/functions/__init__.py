"""The functions that a statement may call, by their names and syntax nodes."""
