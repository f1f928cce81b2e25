"""Estimate how long a build takes on this machine: by a probe of its cores, then by the build's rate.

How long one took on another machine tells nothing: beside other work, or on slower cores, it is twice that.
"""

import os
import random
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

# What `measure_speed` gives on two cores at rest, where the seconds of modules and recipes were measured.
REFERENCE_SPEED = 20.0
PROBE_SECONDS = 0.2
MIN_PACKAGES = 20  # of which a rate is taken
LINK_SHARE = 0.1  # of a build's time, when all packages are compiled


def measure_speed(*, seconds: float = PROBE_SECONDS) -> float:
    """Measure how much all cores together compress now, in MB/s: what is left beside other programs."""
    data = bytes(random.Random(0).choices(b"abcdefgh \n{}()=.,", k=1 << 16))
    end = time.monotonic() + seconds

    def compress(_: int) -> int:
        rounds = 0
        while time.monotonic() < end:
            zlib.compress(data)
            rounds += 1
        return rounds

    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        rounds = sum(pool.map(compress, range(workers)))
    return max(rounds, 1) * len(data) / seconds / 1e6


def expected(seconds: float, speed: float) -> str:
    """Format the duration of a build at this speed, from its seconds at the reference speed."""
    return about(seconds * REFERENCE_SPEED / speed)


def about(seconds: float) -> str:
    """Write an estimate in whole minutes, or in tens of seconds where it is less than two.

    Example:
        >>> about(329), about(47)
        ('about 5 min', 'about 50 s')
    """
    if seconds >= 120:
        return f"about {round(seconds / 60)} min"
    return f"about {max(10, round(seconds / 10) * 10)} s"


def progress(packages: int, total: int, seconds: float) -> str:
    """Format a build's progress, and its remaining time at its own rate.

    Args:
        packages: That are compiled.
        total: About how many there are; it differs a little with the version of Go.
        seconds: Since the first was compiled.
    """
    if packages >= total:
        return f"{packages:,} packages compiled, now linking"
    text = f"{packages:,} of about {total:,} packages compiled"
    if packages < MIN_PACKAGES:
        return text
    remaining = seconds * (total - packages) / packages
    return f"{text}, {about(remaining + LINK_SHARE * (seconds + remaining))} left at this machine's rate"
