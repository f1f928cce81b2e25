"""One exercise a module: its checks and their data. ``exercises.EXERCISES`` has the notebooks' numbers."""
