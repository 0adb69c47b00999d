"""What a kernel is, and the choice among kernels for a node."""
