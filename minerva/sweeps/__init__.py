"""Sweeps: many runs from one specification, on this machine or on a cluster.

`spec` reads the specification, `expansion` turns it into run folders, `sweep` starts or resumes each of them with an
executor (`local`, `ray_tasks`), and `status` is what is known of them. A run is a process of its own, `minerva train …
--resume-or-start`: this package imports neither torch nor the trainers.
"""
