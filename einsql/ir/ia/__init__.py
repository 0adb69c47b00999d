"""The implementation algebra: plans over tiles that are placed at sites."""
