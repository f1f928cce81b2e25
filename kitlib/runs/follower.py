"""Training progress during a wait: the logs of the first pods, followed and summarized in a line.

Only the first pods are followed, since all ranks take the same steps and each log is a connection.
"""

import re
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from kitlib.k8s import logs, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.metrics import events
from kitlib.metrics.run_progress import RunProgress

MAX_PODS = 8
_PODS = re.compile(r"\b(\d{1,9}) of (\d{1,9}) pods")


class RunFollower(AbstractContextManager["RunFollower"]):
    """Follows the events of a run's pods until it is left.

    Example:
        >>> with RunFollower(kube) as follower:
        ...     follower.follow(pods)
        ...     follower.describe("Running: 4 of 4 pods")
        '140 of 375 steps, 12 s, loss 0.41  512 images/s'
    """

    def __init__(self, kube: Kube) -> None:
        self.progress: RunProgress = RunProgress()
        self.began: float = time.monotonic()
        self._followers = logs.PodLogFollowers(kube)

    def follow(self, run_pods: Iterable[Object]) -> None:
        """Follow those that have started."""
        for pod in filter(pods.started, run_pods):
            if len(self._followers.followed) < MAX_PODS:
                self._followers.follow(pod, pod["metadata"]["uid"])

    def describe(self, status: str) -> str:
        """Describe steps, elapsed seconds, loss and images a second; before the first event, the status."""
        for _, line in self._followers.drain():
            if (event := events.parse_line(line.text)) is not None:
                self.progress.add(event)
        elapsed = f"{time.monotonic() - self.began:.0f} s"
        if not self.progress.began:
            pods_alone = _PODS.sub(r"\1/\2 pods", status)  # a bar would show them as work that is done
            return f"{pods_alone}, {elapsed}"
        return ", ".join(filter(None, [self.progress.share, elapsed, self.progress.figures]))

    def __exit__(self, *exception: object) -> None:
        self._followers.close()
