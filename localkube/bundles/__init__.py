"""One file with everything that Trainyard fetches or builds, for rooms with poor Wi-Fi.

Standard library only: a machine without a network uses a bundle before anything is installed.
"""
