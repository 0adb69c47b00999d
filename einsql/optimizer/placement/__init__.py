"""Where results of a cut graph are placed, and how they get there."""
