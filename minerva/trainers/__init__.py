"""The algorithms, a package each, and the loops that drive them."""
