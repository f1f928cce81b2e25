"""Check whether a node is alive, by the status that its kubelet reports."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def has_reported(node: Mapping[str, Any], *, since: float = 0.0) -> bool:
    """Check that a node is Ready, and has reported so since then: the API remembers older reports."""
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp() >= int(since)
        for condition in node["status"].get("conditions") or []
    )
