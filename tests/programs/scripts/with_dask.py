"""Sum numbers with Dask: rank 0 has the scheduler and the client, the other ranks are workers."""

import asyncio
import os

from distributed import Client, Scheduler, Worker

ADDRESS = f"tcp://{os.environ['MASTER_ADDR']}:8786"


async def schedule() -> None:
    async with Scheduler(port=8786, dashboard=False), Client(ADDRESS, asynchronous=True) as client:
        await client.wait_for_workers(int(os.environ["WORLD_SIZE"]) - 1)
        total = await client.submit(sum, client.map(int, range(100)))
        workers = len(client.scheduler_info()["workers"])
        print(f"workers: {workers}, sum {total}")
        await client.shutdown()


async def work() -> None:
    async with Worker(ADDRESS, dashboard=False, nthreads=1) as worker:
        await worker.finished()


asyncio.run(schedule() if os.environ["RANK"] == "0" else work())
