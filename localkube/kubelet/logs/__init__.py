"""Container logs: write them in the CRI's format, rotate, read and follow them."""
