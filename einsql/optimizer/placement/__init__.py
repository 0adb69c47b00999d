"""The placement of a cut graph's results, and the exchanges that produce it."""
