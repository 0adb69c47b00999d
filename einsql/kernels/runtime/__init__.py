"""The runtime of compiled kernels: threads, BLAS, mathematics, and the compile cache on disk."""
