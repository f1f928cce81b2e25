"""A cluster under random disturbances, one noun a module: the plan of what is done when, what attendees do,
the faults, what the API has acknowledged, and the resources that processes and files hold.

``soak_cluster.py`` puts them together.
"""
