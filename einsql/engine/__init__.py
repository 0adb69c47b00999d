"""The room of execution: relations, the store, programs and results."""
