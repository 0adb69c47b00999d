"""What compiled kernels call: threads, BLAS, mathematics; and the cache of compiled kernels."""
