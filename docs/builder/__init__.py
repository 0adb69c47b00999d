"""Builds docs/tour.html: runs the blocks of docs/tour/*.md and shows what they gave."""
