"""Plans as files: cuts and placements by operation, which users export, edit and set."""
