"""The forkserver: a process that has imported torch and forks containers, which start in milliseconds.

The process itself is ``server.py``; the runtime's end of the connection is in ``runtime/launches.py``.
"""
