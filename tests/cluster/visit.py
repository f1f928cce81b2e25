"""What a visitor does in a container without rights: a cluster, two jobs at the same time, nothing left.

Run inside the container by ``test_plain_docker``; prints one JSON object.
"""

import json
import os
import threading
import time

import psutil

import kitlib as kit

LOOK_SECONDS = 0.5


def memory() -> int:
    """Return the bytes of all processes of the container, shared ones counted once."""
    total = 0
    for process in psutil.process_iter():
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


class Highest:
    """The most memory that was seen while it was open."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")

    def __enter__(self) -> "Highest":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.bytes = max(self.bytes, memory())


def train(cluster, *names: str) -> list[float]:
    """Run jobs of two workers at the same time, and return what they reach."""
    jobs = [
        kit.IndexedJob("trainers/digits_ddp.py", nodes=2, name=name, args={"epochs": 3}) for name in names
    ]
    runs = [kit.launch(job, cluster=cluster) for job in jobs]
    for run in runs:
        run.wait(timeout=400)
    return [float(run.metrics("eval").accuracy.iloc[-1]) for run in runs]


def main() -> None:
    began = time.monotonic()
    with kit.create_cluster("local", name="visit", nodes=2) as cluster:
        mode = cluster.status["mode"]
        # While the first two run, the forkserver imports torch; those that come later share its memory.
        accuracies = train(cluster, "digits-1", "digits-2")
        with Highest() as highest:
            accuracies += train(cluster, "digits-3")
    # This program is the container's first process, and takes no note of the ends of others.
    left = [
        process.name()
        for process in psutil.process_iter()
        if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
    ]
    print(
        json.dumps(
            {
                "mode": mode,
                "accuracies": accuracies,
                "memory": highest.bytes,
                "left": left,
                "seconds": round(time.monotonic() - began),
            }
        )
    )


if __name__ == "__main__":
    main()
