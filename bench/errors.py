"""The ways in which a benchmark cannot be run as it is meant."""


class PeerAbsent(Exception):
    """A peer could not be obtained; the text says why, and the table repeats it."""


class MeasureFailed(Exception):
    """What was to be timed did not happen; the text says what was seen last."""
