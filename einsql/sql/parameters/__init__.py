"""Parameters and other inputs whose values are known at run time."""
