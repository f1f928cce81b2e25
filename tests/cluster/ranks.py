"""Ranks that train without torch, for faults: they exchange a number each step, and so each waits for the
other as the ranks of a gradient's all-reduce do.
"""

import contextlib

import psutil

STEPS = 45
TRAINER = """
import os, socket, sys, time
rank, steps = int(os.environ["NODE_RANK"]), int(sys.argv[1])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    other, _ = socket.create_server(("", address[1])).accept()
else:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)
stream = other.makefile("rw")
for step in range(steps):
    print(step, file=stream, flush=True)
    assert int(stream.readline()) == step
    print(step, flush=True)
    time.sleep(0.1)
"""


def component(cluster, name):
    """Return the process of a component, by the file that it is told about."""
    word = "localkube.kubelet" if name == "kubelet" else name
    mine = f"/{cluster.name}/"
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if word in words[:3] and mine in " ".join(words):
            return process
    return None


def containers(cluster, run):
    """Return the containers of a run by rank, as the host sees them."""
    supervisor = psutil.Process(cluster.status["processes"]["supervisor"]["pid"])
    by_rank = {}
    for process in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "/trainyard/trainer/trainer.py" in process.cmdline() and process.environ():
                by_rank[int(process.environ()["NODE_RANK"])] = process
    return by_rank


def at_step(run, step):
    """Return the lines of rank 0 as they come, from the one of a step on."""
    lines = iter(run.logs(rank=0, follow=True))
    for line in lines:
        if line == str(step):
            return lines
    raise AssertionError(f"rank 0 ended before step {step}: {run.status}\n{run.logs()}")
