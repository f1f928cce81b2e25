"""Simulated workers of the task service measure: they request tasks and report them as done.

    python bench/task_clients.py HOST:PORT FIRST COUNT SECONDS

One process simulates ``COUNT`` workers with numbers from ``FIRST`` on; each sends its next request as soon as
it has a response. Prints the number of completed tasks and the seconds.
"""

import asyncio
import sys
import time
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
from parameter_server import channels, protocol_pb2_grpc  # noqa: E402
from parameter_server.protocol_pb2 import TRAIN, Progress, Registration  # noqa: E402

INCARNATION = 7


async def work(master: protocol_pb2_grpc.MasterStub, number: int, until: float) -> int:
    """Run one worker until a deadline; return its number of tasks."""
    progress, count, tasks = Progress(worker=number), 0, master.Tasks()
    while time.perf_counter() < until:
        await tasks.write(progress)
        task = await tasks.read()
        if task.kind != TRAIN:
            raise SystemExit(f"no task, but kind {task.kind}")
        progress = Progress(
            worker=number, epoch=task.epoch, minibatches=task.minibatches, incarnations=[INCARNATION]
        )
        count += 1
    return count


async def main() -> None:
    address, first, count, seconds = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
    with channels.connect(address) as channel:
        master = protocol_pb2_grpc.MasterStub(channel)
        channels.call_with_retry(
            master.RegisterServer, Registration(index=0, address="127.0.0.1:1", incarnation=INCARNATION)
        )
    async with grpc.aio.insecure_channel(address, options=channels.OPTIONS) as channel:
        master = protocol_pb2_grpc.MasterStub(channel)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()  # all begin together
        start = time.perf_counter()
        workers = (work(master, number, start + seconds) for number in range(first, first + count))
        total = sum(await asyncio.gather(*workers))
        sys.stdout.write(f"{total} {time.perf_counter() - start}\n")


if __name__ == "__main__":
    asyncio.run(main())
