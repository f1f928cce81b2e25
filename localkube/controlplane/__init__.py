"""The control plane: its programs, its certificates, and the command line of each component.

Starting and restarting them is the supervisor's work, not this package's.
"""

KUBERNETES = "v1.37.2"
ETCD_QUOTA_BYTES = 2 << 30


def duration(seconds: float) -> str:
    """Format a length of time for people.

    Example:
        >>> duration(330)
        '5 min 30 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
