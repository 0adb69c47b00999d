"""The implementation algebra: at which sites tiles are placed."""
