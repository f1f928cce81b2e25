"""``python -m kitlib.cli``: the same as ``kit``."""

from kitlib.cli.main import main

main()
