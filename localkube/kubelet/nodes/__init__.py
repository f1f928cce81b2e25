"""The virtual nodes as API objects: their addresses and GPUs, and their heartbeats."""
