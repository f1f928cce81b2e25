"""An API server that lists nodes and nothing else, for simulated clusters without Kubernetes."""


class ReadyNodes:
    """Answers with as many Ready training nodes as it is told: another count each time, then the last."""

    def __init__(self, pool: str, *counts: int) -> None:
        self.pool, self.counts = pool, list(counts)

    def get_all(self, kind: str) -> list[dict[str, object]]:
        assert kind == "Node", kind
        count = self.counts.pop(0) if self.counts[1:] else self.counts[0]
        metadata = {"labels": {"trainyard/pool": self.pool}, "creationTimestamp": "2026-01-01T00:00:00Z"}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        return [{"metadata": metadata | {"name": f"node-{n}"}, "status": status} for n in range(count)]
