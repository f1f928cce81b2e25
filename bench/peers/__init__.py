"""Programs that the kit is compared with, each run as a process of its own.

They write the same JSON lines as the trainers, so that one reader serves both. Obtaining what they need is
the business of modules in ``bench/``.
"""
