"""Parameters and other inputs that are known when a statement runs."""
