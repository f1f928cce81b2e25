"""The status of a pod, computed from its specification and the records of its containers. Pure."""
