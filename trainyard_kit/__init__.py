"""The parts around the library `kitlib`: command line, clouds, workshops, exercises, hosted notebooks.

`kitlib` finds them by entry points and imports none. A hosted notebook imports `trainyard_kit.hosted` before
the packages are installed, so nothing is imported here.
"""
