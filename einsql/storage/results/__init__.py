"""Results of statements, as rows, arrays and batches."""
