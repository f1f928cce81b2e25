"""``trainyard``: the library's verbs for a terminal."""
