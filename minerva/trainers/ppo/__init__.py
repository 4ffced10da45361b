"""Proximal policy optimization (Schulman et al. 2017)."""
