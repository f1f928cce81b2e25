"""Containers' logs: written in the CRI's format, bounded, read back, followed."""
