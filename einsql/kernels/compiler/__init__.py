"""The compiler of kernels: from the text of a kernel to an object file, in a process of its own."""
