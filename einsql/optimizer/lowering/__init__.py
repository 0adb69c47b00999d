"""Plans over blocks to plans on sites (Table 1), and those to SPMD programs."""
