"""Other programs' ways to einsql."""
