"""Steps whose rows run at the sites of the blocks that they choose by a value."""
