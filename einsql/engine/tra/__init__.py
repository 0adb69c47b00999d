"""Tiles on sites: programs of the implementation algebra, run site by site or on ranks."""
