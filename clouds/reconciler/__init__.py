"""Bring cloud resources up, or take them down, in the order of their dependencies."""
