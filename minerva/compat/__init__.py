"""Faces that the users of other libraries know."""
