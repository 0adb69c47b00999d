"""Connections, cursors, scripts, and one module for each kind of statement."""
