"""The runtime of compiled kernels: threads, BLAS, mathematics, and the cache of kernels on disk."""
