"""Trainers' events, and metrics computed from them: progress, curves, placement, usage. Pure."""
