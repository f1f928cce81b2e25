"""The virtual nodes as objects of the API: their addresses and GPUs, their signs of life, simulated ones."""
