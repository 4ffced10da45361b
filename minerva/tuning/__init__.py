"""Tuning: search for the settings of one algorithm on one environment.

`spec` reads the specification, `space` what may vary, `study` asks Optuna for trials and keeps them in a journal,
`tuner` runs them as a sweep that plans its runs as it goes, and `outcome` and `page` say what was found. This package
imports neither torch nor the trainers.
"""
