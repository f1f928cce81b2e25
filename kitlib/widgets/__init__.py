"""Watches and plots: what a run and a cluster do, live in a notebook and as static pictures."""
