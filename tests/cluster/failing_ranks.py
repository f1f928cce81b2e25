"""Train two ranks of which one ends or hangs in the way that the first argument names."""

import argparse
import ctypes
import datetime
import errno
import importlib
import os
import queue
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

COLOURED = (
    "\x1b[1;31mTraceback (most recent call last):\x1b[0m\n"
    '  File \x1b[35m"/x.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
    "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad label 12\x1b[0m"
)


class Data(torch.utils.data.Dataset):
    """Pictures whose loading ends the process that loads them, by a signal."""

    def __init__(self, ending):
        self.ending = ending

    def __len__(self):
        return 8

    def __getitem__(self, index):
        os.kill(os.getpid(), self.ending)
        return torch.ones(1)


class Tensors(torch.utils.data.Dataset):
    """Large tensors, which processes hand over in /dev/shm."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(4_000_000)


def memory():
    hog = []
    while True:
        hog.append(b"x" * 50_000_000)


def colours():
    print(COLOURED, file=sys.stderr, flush=True)
    os._exit(1)


def fail(error):
    raise error


def loop():
    while True:
        pass


def imports():
    import no_such_module_of_ours  # noqa: F401


WAYS = {
    "memory": memory,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(3),
    "leave": lambda: os._exit(0),
    "message": lambda: sys.exit("the data set is not where it should be"),
    "colours": colours,
    "import": imports,
    "beside": lambda: importlib.import_module("hanging_ranks"),
    "raise": lambda: fail(ValueError("bad label 12")),
    "full": lambda: fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/checkpoint.pt")),
    "read-only": lambda: open("/trainyard/trainer/out.txt", "w"),  # noqa: SIM115, PTH123
    "file": lambda: open("/data/train.csv"),  # noqa: SIM115, PTH123
    "address": lambda: fail(ValueError(f"nowhere: {socket.getaddrinfo('nowhere.invalid', 29500)}")),
    "loader": lambda: next(iter(DataLoader(Data(signal.SIGKILL), num_workers=1))),
    "nan": lambda: fail(FloatingPointError("the loss is nan")),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": loop,
    "sleep": lambda: time.sleep(1000),
    "timeout": lambda: time.sleep(1000),
    "bus": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "interrupt": lambda: fail(KeyboardInterrupt()),
    "files": lambda: fail(OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/data/1.png")),
    "small-shm": lambda: list(DataLoader(Tensors(), num_workers=2)),
    "broadcast": lambda: dist.broadcast(torch.ones(10), src=1),
    "barrier": dist.barrier,
    "send": lambda: dist.send(torch.ones(10), dst=0),
    "queue": lambda: queue.Queue().get(),
    "worker": lambda: next(iter(DataLoader(Data(signal.SIGSTOP), num_workers=1))),
}


def join(way):
    """Form the process group, in which ranks may not meet."""
    options, is_last = {}, os.environ["RANK"] != "0"
    if way == "alone":
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    if way == "comes-late" and is_last:
        time.sleep(1000)
    if way == "leaves-before" and is_last:
        sys.exit(0)
    if way in ("own-address", "taken-port"):
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # a store of its own, beside torchrun's
    if way == "own-address":
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29577"}
    if way in ("world-size", "no-third") and (is_last or way == "world-size"):
        options = {"rank": int(os.environ["RANK"]), "world_size": 3}
    seconds = 5 if way in ("timeout", "no-third") else 1800
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds), **options)
    if way == "alone":
        print(f"world size: {dist.get_world_size()}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    way = parser.parse_args().way
    join(way)
    for step in range(5 if way == "alone" else 10_000):
        size = 10
        if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
            size = 11
            if way in WAYS:
                WAYS[way]()
        dist.all_reduce(torch.ones(size if way == "shape" else 10))
        print(f"step {step}", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
