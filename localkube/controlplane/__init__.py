"""The control plane: obtain its binaries, issue its certificates, and say how its components are started.

Starting, watching and restarting them is the supervisor's work, not this package's.
"""
