"""One exercise a module, those of formulas together: checks and data. ``exercises.EXERCISES`` lists them."""
