"""Builds the site: runs the chapters of the tour, and calls Sphinx."""
