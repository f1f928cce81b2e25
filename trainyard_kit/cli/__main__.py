"""``python -m trainyard_kit.cli``: the same as ``trainyard``."""

from trainyard_kit.cli.main import main

main()
