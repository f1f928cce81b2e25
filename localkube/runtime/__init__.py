"""What starts and holds processes apart: the runtime, and what it does for each container.

Standard library only, but for ``orders``, by which the agent and the supervisor tell the runtime what to do.
"""
