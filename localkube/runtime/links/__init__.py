"""Network interfaces, by netlink: create them, and limit the rate of their egress traffic."""
