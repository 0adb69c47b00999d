"""What einsql takes beside NumPy, PyTorch and DuckDB; run by `make bench`."""
