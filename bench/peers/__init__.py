"""Programs to which the kit is compared, each run in a separate process.

They write the same JSON lines as the trainers, so that one reader serves both. Obtaining what they need is
the business of modules in ``bench/``.
"""
