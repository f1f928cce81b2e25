"""Programs to which the kit is compared, each run in a separate process.

They write the same JSON lines as the trainers. Modules in ``bench/`` obtain what they need.
"""
