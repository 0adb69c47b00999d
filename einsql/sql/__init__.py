"""The room of SQL: text to bound EinSum graphs."""
