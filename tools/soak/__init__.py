"""The parts of a soak test: plan, attendees, faults, acknowledged writes, and resources.

``soak_cluster.py`` combines them.
"""
