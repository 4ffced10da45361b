"""On-policy maximum a posteriori policy optimisation (Song et al. 2020)."""
