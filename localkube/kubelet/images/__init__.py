"""What stands in for container images: the table, and where the programs in it lie on this machine."""
