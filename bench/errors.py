"""The errors of benchmarks."""


class PeerAbsent(Exception):
    """A peer is not available; the message is the reason, which the table repeats."""


class MeasureFailed(Exception):
    """The awaited event did not happen; the message has the last observed state."""
