"""Stands for ``tensorflow`` in processes that a script starts."""

from minerva.compat import aliases

aliases.replace(__name__)
