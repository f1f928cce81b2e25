"""Probes and hooks: when they are asked, how, and what the answers amount to."""
