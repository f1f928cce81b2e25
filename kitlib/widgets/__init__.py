"""Watches and plots of a run and a cluster, live in a notebook and as static pictures."""
