"""The checks and data of each exercise, one module each; formulas share one. See ``exercises.EXERCISES``."""
