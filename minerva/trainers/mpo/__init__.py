"""Maximum a posteriori policy optimization (Abdolmaleki et al. 2018a, 2018b)."""
