"""Containers that start in milliseconds: forks of a process that has imported torch already."""
