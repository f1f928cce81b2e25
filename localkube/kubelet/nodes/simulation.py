"""The kubelet's simulated nodes: their number, and the process that serves them (``simulator.py``).

The number is kept in a file of the cluster, so that they survive restarts.
"""

import asyncio
import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError
from localkube.paths import write_private
from localkube.runtime.syscalls import die_with_parent
from localkube.tasks import start_task

log = logging.getLogger(__name__)

# Label and taint of a simulated node.
MARK = "trainyard/simulated"
MOST_NODES = 5000
RESTART_SECONDS, READY_SECONDS = 1.0, 600


class Simulation:
    """Keeps the simulator running while there is a simulated node."""

    def __init__(self, *, settings: Path, state: Path) -> None:
        self._settings, self._state = settings, state
        self._keeper: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def restore(self) -> None:
        """Start the former number of nodes."""
        with contextlib.suppress(FileNotFoundError):
            count = json.loads(self._state.read_text())["nodes"]
            if count:
                self._start(count)

    async def set(self, count: int) -> dict[str, Any]:
        """Set the number of simulated nodes, and wait until they are Ready."""
        if not 0 <= count <= MOST_NODES:
            raise LocalClusterError(
                f"there can be 0 to {MOST_NODES} simulated nodes", about=str(count), fix="ask for fewer"
            )
        write_private(self._state, json.dumps({"nodes": count}))
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._start(count)
        try:
            await asyncio.wait_for(self._ready.wait(), READY_SECONDS)
        except TimeoutError as error:
            raise LocalClusterError(
                f"they were not Ready within {READY_SECONDS} s; they will be later",
                about=f"{count} simulated nodes",
                fix="watch them: kubectl get nodes -l trainyard/simulated",
            ) from error
        if count == 0:
            assert self._keeper is not None
            self._keeper.cancel()
        return {"simulated": count}

    def _start(self, count: int) -> None:
        self._ready.clear()
        self._keeper = start_task(self._keep(count), name="simulator")

    async def _keep(self, count: int) -> None:
        command = [sys.executable, "-m", "localkube.kubelet.nodes.simulator", str(self._settings), str(count)]
        while True:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                preexec_fn=die_with_parent,
            )
            try:
                assert process.stdout is not None
                if await process.stdout.readline():
                    self._ready.set()
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            log.warning("the simulator ended with %s; starting it again", code)
            await asyncio.sleep(RESTART_SECONDS)
