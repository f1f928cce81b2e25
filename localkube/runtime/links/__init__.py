"""Network interfaces by netlink: making them, and how fast what leaves by them may be."""
