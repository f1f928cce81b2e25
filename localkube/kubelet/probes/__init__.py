"""Probes and lifecycle hooks: scheduling, handlers, thresholds."""
