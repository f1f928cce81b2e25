"""The command line ``trainyard``: the library's verbs for a terminal."""
