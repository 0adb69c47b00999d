"""Databases: in memory, or in a file that all sessions of a process share."""
