"""Sparse tiles between sites, and exchanges of the elements that they need."""
