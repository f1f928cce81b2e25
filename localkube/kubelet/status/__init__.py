"""What the API is told of a pod: computed from its specification and from records of what happened. Pure."""
