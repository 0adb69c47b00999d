"""SQL text to sqlglot trees, and what is read of a text without parsing it."""
