"""One server and two workers compared with two ranks of DDP: images per second, same network and batch.

Both train the small network on images in CIFAR-10's format in single precision, with 128 images per step and
process. The parameter server and the master share the cores with the workers; DDP's ranks wait for each other
and average their gradients. The rate excludes the first epoch, which warms up.

Bounded by the cores: of 65.5 ms of CPU for a minibatch, 5.5 are outside the model; DDP spends time in
all-reduce and in waits for the other rank. Workers keep the memory that a minibatch frees for the next
messages, which also saves page faults that DDP's ranks have.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench import cifar10, torchrun
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from kitlib import config
from kitlib.metrics import events

BATCH, EPOCHS = 128, 3
IMAGES, QUICK_IMAGES = 12_800, 2560
RUN_SECONDS = 900
LIMIT = Limit(1.0, at="least")
PREPARE = "programs/dataset/prepare_dataset.py"
MODEL = Path(__file__).parents[1] / "cifar10_records.py"


def measure(lab: Lab) -> list[Result]:
    """Train without a cluster, alternating between sides.

    Raises:
        MeasureFailed: There is one core.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise MeasureFailed("there is one core")
    lab.clear()
    images = QUICK_IMAGES if lab.quick else IMAGES
    records = _records(lab.folder, images)
    lab.report(f"training on {images} images")
    flags = {"model": "small", "epochs": EPOCHS, "batch_size": BATCH, "limit": images, "no_bf16": None}
    samples = alternate(
        {"servers": lambda: _train(lab.folder, records), "ddp": cifar10.ours(lab, flags, ranks=2)},
        lab.rounds,
    )
    return [
        Result(
            what=f"CIFAR-10 format, small net, batch {BATCH}: 1 parameter server, 2 workers × 1 thread",
            unit="images/s",
            ours=tuple(samples["servers"]),
            peer="DDP on 2 × 1 thread",
            theirs=tuple(samples["ddp"]),
            limit=LIMIT,
        )
    ]


def _records(folder: Path, images: int) -> Path:
    """Return a file of records, generated if it is missing."""
    root = folder / "records"
    path = root / "cifar10" / "records" / "train.npy"
    if not path.exists():
        command = [sys.executable, str(config.find(PREPARE)), "cifar10", f"--root={root}", "--records"]
        command += ["--source=synthetic", f"--limit={images}"]
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=cifar10.DRAW_SECONDS, check=False
        )
        if process.returncode:
            error = " | ".join(process.stderr.splitlines()[-3:])
            raise MeasureFailed(f"the records could not be generated: {error}")
    return path


def _train(folder: Path, records: Path) -> float:
    """Train once; return the images per second after the first epoch."""
    run_folder = folder / f"servers-{time.monotonic_ns()}"
    run_folder.mkdir()
    trainers, port = config.find("trainers/cifar10_ddp.py").parent, torchrun.free_port()
    environment = {name: os.environ[name] for name in torchrun.KEPT if name in os.environ}
    environment |= dict.fromkeys(torchrun.THREADS, "1") | {"PYTHONPATH": str(trainers)}
    job = [
        f"--trainer={MODEL}",
        f"--records={records}",
        f"--state-dir={run_folder / 'state'}",
        f"--port={port}",
    ]
    job += [f"--epochs={EPOCHS}", f"--minibatch={BATCH}", "--workers=2", "--servers=1"]
    job += ["--minibatches-per-task=4"]  # so that both workers end at the same time
    to_master = [f"--master=127.0.0.1:{port}"]
    commands = {"master": ["master", *job], "server": ["server", *to_master, "--index=0"]}
    commands |= {f"worker-{n}": ["worker", *to_master, f"--index={n}"] for n in range(2)}
    processes = {}
    try:
        for name, (program, *flags) in commands.items():
            with (run_folder / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(
                    [sys.executable, "-m", f"parameter_server.{program}", *flags],
                    env=environment,
                    cwd=run_folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        status = processes["master"].wait(RUN_SECONDS)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    lines = (run_folder / "master.log").read_text(errors="replace").splitlines()
    epochs = [event.fields for event in events.parse(lines) if event.event == "epoch"]
    if status or len(epochs) != EPOCHS:
        raise MeasureFailed(f"the master ended with {status}: {' | '.join(lines[-3:])}")
    return sum(epoch["records"] for epoch in epochs[1:]) / sum(epoch["seconds"] for epoch in epochs[1:])
