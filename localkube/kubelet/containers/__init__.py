"""One container: its specification, and its process with its streams and executed commands."""
