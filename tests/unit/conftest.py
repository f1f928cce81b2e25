"""Fixtures of tests that need neither torch nor a cluster; ``tests/programs`` starts programs."""

from ..localkube.conftest import empty_state, no_clusters_of_other_tests

__all__ = ["empty_state", "no_clusters_of_other_tests"]
