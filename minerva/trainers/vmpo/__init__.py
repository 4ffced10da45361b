"""On-policy maximum a posteriori policy optimization (Song et al. 2020)."""
