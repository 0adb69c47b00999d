"""Rewrites of EinSum graphs."""
