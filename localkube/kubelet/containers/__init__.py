"""One container: what its specification says, and its process with the streams and commands beside it."""
