"""Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018a, 2018b)."""
