"""The virtual nodes as objects of the API: their addresses and GPUs, and their signs of life."""
