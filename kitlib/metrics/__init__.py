"""Trainers' events, and what is computed from them: progress, curves, placement, usage. Pure."""
