"""What trainers report, and what is computed from it: events, curves, timeline, placement. Pure."""
