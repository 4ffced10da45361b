"""Gymnasium's MuJoCo tasks of version 5, with its models."""
