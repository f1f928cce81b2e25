"""Stand-ins for container images: the table, and the programs in it on this machine."""
