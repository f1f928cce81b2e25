"""Simulated workers for the measure of the task service: they get tasks, say they are done, and ask again.

    python bench/task_clients.py HOST:PORT FIRST COUNT SECONDS

One process stands for ``COUNT`` workers with numbers from ``FIRST`` on, which take turns, as fast as they get
answers. On stdout: how many tasks were done, and in how many seconds.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
from parameter_server import channels, protocol_pb2_grpc  # noqa: E402
from parameter_server.protocol_pb2 import TRAIN, Progress, Registration  # noqa: E402

INCARNATION = 7


def main() -> None:
    address, first, count, seconds = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
    with channels.connect(address) as channel:
        master = protocol_pb2_grpc.MasterStub(channel)
        channels.insist(
            master.RegisterServer, Registration(index=0, address="127.0.0.1:1", incarnation=INCARNATION)
        )
        progress = {number: Progress(worker=number) for number in range(first, first + count)}
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()  # all begin together
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for number in progress:
                task = master.NextTask(progress[number])
                if task.kind != TRAIN:
                    raise SystemExit(f"no task, but kind {task.kind}")
                progress[number] = Progress(
                    worker=number, epoch=task.epoch, minibatches=task.minibatches, incarnations=[INCARNATION]
                )
                done += 1
        sys.stdout.write(f"{done} {time.perf_counter() - began}\n")


if __name__ == "__main__":
    main()
