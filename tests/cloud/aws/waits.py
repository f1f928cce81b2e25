"""How long things take at Amazon, in simulated seconds: what people report, rounded."""

SECONDS = {
    "cluster": 540,
    "cluster gone": 150,
    "cluster update": 60,
    "node group": 150,
    "node group gone": 240,
    "node group update": 60,
    "node group fails": 1500,  # that its nodes do not join is found out late
    "add-on": 30,
    "add-on gone": 20,
    "add-on degraded": 900,
    "file system": 5,
    "mount target": 90,
    "mount target gone": 45,
    "NAT gateway": 100,
    "NAT gateway gone": 60,
}


class Waits:
    """The waits of one fake, which a test may change."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let everything take as long as at Amazon."""
        self._seconds = dict(SECONDS)

    def set(self, kind: str, seconds: float) -> None:
        """Let something take so long; ``*`` is everything."""
        if kind != "*" and kind not in SECONDS:
            raise ValueError(f"nothing of the kind {kind!r} takes time; there are {', '.join(SECONDS)}")
        for each in SECONDS if kind == "*" else (kind,):
            self._seconds[each] = seconds

    def __getitem__(self, kind: str) -> float:
        return self._seconds[kind]
