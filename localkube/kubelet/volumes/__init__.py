"""Volumes of pods: where their files come from, where they lie, and who makes those that are claimed."""
