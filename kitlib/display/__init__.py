"""Tables, progress bars and tracebacks, for terminals and notebooks."""
