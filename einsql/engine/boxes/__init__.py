"""Nodes over boxes of their domain: within a memory limit, and over stored tiles."""
