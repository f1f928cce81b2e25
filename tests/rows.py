"""Rows of a test that show more of the same: `make test` leaves them out."""

from typing import Any

import pytest


def slow(*rows: Any) -> list[Any]:
    """Return rows for ``pytest.mark.parametrize``, each with the marker ``slow``."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow) for row in rows
    ]
