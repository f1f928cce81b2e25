"""All around the library `kitlib`: the command, the clouds, workshops, exercises, hosted notebooks.

`kitlib` finds what is here by entry points and imports none of it. A hosted notebook imports
`trainyard_kit.hosted` before the packages are installed, so nothing is imported here.
"""
