"""Limits and usage of CPU, memory, disk and processes."""
