"""Check on this machine everything that needs a GPU, and write a table of the measurements.

    make gpu                                        # the environment is set up first
    .venv/bin/python tools/gpu.py --pack gpu.tar.xz # a pack for a machine without a network, 45 MB
    make gpu PACK=gpu.tar.xz                        # on that machine, with a Python that has torch

Two local clusters are created: one assigns the real GPUs to nodes, one shares the first of them between two
nodes. Each row of the table is a separate check; a failure does not stop the others, but the exit status
reports it. The table is in ``reports/gpu.md``, the figures in ``reports/gpu.json``.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PACK = "TRAINYARD_GPU_PACK"  # the folder of an unpacked pack
# The kit's packages that a machine with torch, pandas and Matplotlib may lack, or have in too old a version.
PACKAGES = [
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "backports.tarfile", "certifi", "cffi", "click"),
    *("cryptography", "dnslib", "durationpy", "frozenlist", "kubernetes", "multidict", "nvidia-ml-py"),
    *("oauthlib", "packaging", "propcache", "psutil", "pycparser", "python-dateutil", "pyyaml"),
    *("requests-oauthlib", "rich", "six", "urllib3", "websocket-client", "yarl"),
]
GPT = {"layers": 12, "heads": 12, "width": 768, "context": 1024, "batch-size": 32, "precision": "bf16"}
TIMEOUT = 90.0
PROBE = """
import glob, json, os, time
os.environ.update(VARIABLES)
import torch
count = torch.cuda.device_count()
row = {"nodes": sorted(glob.glob("/dev/nvidia[0-9]*")), "cuda": torch.cuda.is_available(), "count": count}
if row["cuda"]:
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = x @ x
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        y = x @ x
    torch.cuda.synchronize()
    row["tflops"] = 20 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12
    row["name"], row["nccl"] = torch.cuda.get_device_name(0), ".".join(map(str, torch.cuda.nccl.version()))
    row["torch"], row["toolkit"] = torch.__version__, torch.version.cuda
print(json.dumps({"event": "end", "time": time.time(), "rank": 0, "world_size": 1} | row), flush=True)
"""
SEEN = {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all"}  # variables that a pod could set itself


class Missing(Exception):
    """This machine lacks something; the message names the fix."""


# Packs ------------------------------------------------------------------------------------------------------


def pack(goal: Path, *, python: str) -> None:
    """Pack the cached control plane and the packages for a Python version into a file."""
    from localkube.controlplane import binaries

    folders = binaries.cached(binaries.obtain(report=print), report=print)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(goal, "w:xz") as tar:
        site = Path(scratch, "site")
        install = ["uv", "pip", "install", "--quiet", "--target", str(site), "--python-version", python]
        install += ["--python-platform", f"{platform.machine()}-manylinux_2_28", "--only-binary", ":all:"]
        install += ["--no-deps", "--constraint", str(ROOT / "constraints.txt"), *PACKAGES]
        search = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        subprocess.run(install, check=True, env=os.environ | {"PATH": search})
        tar.add(site, "site")
        for folder in folders:
            tar.add(folder, f"cache/trainyard/controlplane/{folder.name}")
    print(f"{goal}: {goal.stat().st_size / 1e6:.0f} MB, for Python {python} with torch")


def unpack(source: Path) -> None:
    """Unpack a pack, and restart this program with its contents."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-gpu-"))
    folder.chmod(0o755)  # pods run as other users
    with tarfile.open(source) as tar:
        tar.extractall(folder, filter="tar")
    path = os.pathsep.join(filter(None, [str(ROOT), str(folder / "site"), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), PACK: str(folder)}
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | variables)


# Checks -----------------------------------------------------------------------------------------------------


def require_gpu() -> dict[str, str]:
    """Describe the machine's driver and GPUs.

    Raises:
        Missing: torch cannot use any.
    """
    from localkube.host import inspect_host

    try:
        import torch
    except ImportError as error:
        raise Missing(
            f"this Python has no torch ({error}): make setup, or PYTHON=/path/to/one/that/has"
        ) from error
    machine = inspect_host()
    if not machine.gpus:
        raise Missing("the NVIDIA driver shows no GPU here (nvidia-smi): rent a machine with one")
    if not torch.version.cuda:
        raise Missing(f"torch {torch.__version__} is built without CUDA: pip install torch, from PyPI")
    if not torch.cuda.is_available():
        raise Missing(f"torch {torch.__version__} needs a driver for CUDA {torch.version.cuda} (nvidia-smi)")
    import pynvml

    pynvml.nvmlInit()
    driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
    gpu = machine.gpus[0]
    return {
        "GPUs": f"{len(machine.gpus)} × {gpu.name}, {gpu.memory / 2**30:.0f} GiB",
        "driver": f"{driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "machine": f"{machine.cores} cores, {machine.memory / 2**30:.0f} GiB, pods in {machine.mode}",
    }


class Trial:
    """The results of the checks: rows of a description, a figure, and whether it is as expected."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, bool]] = []
        self.raw: dict[str, Any] = {}
        self.scratch = Path(tempfile.mkdtemp(prefix="trainyard-gpu-programs-"))
        self.scratch.chmod(0o755)

    def note(self, what: str, figure: object, *, right: bool = True) -> None:
        """Store and print a row."""
        self.rows.append((what, str(figure), right))
        print(f"{time.strftime('%H:%M:%S')} {'ok    ' if right else 'FAILED'} {what}: {figure}", flush=True)

    def attempt(self, check: Callable[..., None], *arguments: Any) -> None:
        """Run one check; a failure becomes a row."""
        from kitlib.errors import KitError

        try:
            check(self, *arguments)
        except (KitError, LookupError, ValueError) as error:
            self.note(check.__doc__ or check.__name__, f"{type(error).__name__}: {error}"[:1500], right=False)

    def probe(self, cluster: Any, name: str, *, gpus: int, node: str = "") -> dict[str, Any]:
        """Run a program that lists GPUs in a pod; return its output."""
        import kitlib as kit

        program = self.scratch / "probe.py"
        program.write_text(PROBE.replace("VARIABLES", repr({} if gpus else SEEN)))
        job: kit.Job = kit.IndexedJob(program, name=name, nodes=1, gpus=gpus)
        if node:
            job = job.patch({"spec": {"template": {"spec": {"nodeName": node}}}})
        (row,) = self.finish(cluster, job)[0].metrics("end").to_dict("records")
        self.raw[name] = row
        return row

    def finish(self, cluster: Any, *jobs: Any) -> list[Any]:
        """Launch jobs concurrently and watch them until they end; record the GPU figures of their views."""
        import kitlib as kit

        runs = [kit.launch(job, cluster=cluster, replace=True) for job in jobs]
        watches = [run.watch() for run in runs]
        frames: dict[str, list[list[str]]] = {run.name: [] for run in runs}
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and not all(watch.over for watch in watches):
            time.sleep(0.5)
            for run, watch in zip(runs, watches, strict=True):
                frames[run.name] += [figure for figure in watch.facts()["figures"] if "GPU" in figure[0]]
        for run in runs:
            run.wait(timeout=TIMEOUT)
        for watch in watches:
            watch.stop()
        self.raw.setdefault("frames", {}).update(frames)
        return runs

    def busiest(self, name: str) -> str:
        """Describe the peak figures in the view of a run."""
        peaks: dict[str, float] = {}
        for kind, text in self.raw["frames"][name]:
            peaks[kind] = max(peaks.get(kind, 0.0), float(text.split()[0]))
        if not peaks:
            raise LookupError(f"run.watch() of {name} showed nothing of its GPU")
        return f"GPU {peaks['GPU']:.0f} %, {peaks['GPU memory']:.1f} GiB"


def discovery(trial: Trial, cluster: Any) -> None:
    """nodes and their GPUs"""
    nodes = {node["metadata"]["name"]: node for node in cluster.kube.get_all("Node")}
    for name, node in sorted(nodes.items()):
        labels = {key: value for key, value in node["metadata"]["labels"].items() if "nvidia" in key}
        trial.raw.setdefault("labels", {})[name] = labels
        count = node["status"]["allocatable"].get("nvidia.com/gpu", "0")
        product = labels.get("nvidia.com/gpu.product", "no GPU")
        trial.note(f"{cluster.name}: nvidia.com/gpu of {name}, by NVML", f"{count} ({product})")


def isolation(trial: Trial, cluster: Any) -> None:
    """pods see the GPUs that they asked for"""
    row = trial.probe(cluster, "with", gpus=1)
    trial.note(
        "a pod with one GPU sees", f"{row['count']}: {row['name']}, {row['nodes']}", right=row["count"] == 1
    )
    trial.note("CUDA and NCCL in the pod", f"torch {row['torch']}, CUDA {row['toolkit']}, NCCL {row['nccl']}")
    trial.note("bf16 product of 8192 × 8192 in a pod", f"{row['tflops']:.0f} TFLOP/s")
    for node in ("node-0", "node-1"):
        row = trial.probe(cluster, f"without-{node}", gpus=0, node=node)
        sees = f"{row['nodes']}, CUDA {row['cuda']}"
        what = f"a pod without GPU on {node} sees, though it sets CUDA_VISIBLE_DEVICES=0"
        trial.note(what, sees, right=not row["cuda"] and not row["nodes"])


def digits(trial: Trial, cluster: Any, *, nodes: int) -> None:
    """05: digits_ddp.py"""
    import kitlib as kit

    job = kit.IndexedJob(
        "trainers/digits_ddp.py", name=f"digits-{nodes}", nodes=nodes, gpus=1, args={"epochs": 40}
    )
    (run,) = trial.finish(cluster, job)
    start, (end,) = run.metrics("start"), run.metrics("eval").to_dict("records")
    devices = sorted(set(start["device"] + " by " + start["backend"]))
    goal = ["cuda:0 by nccl"] if nodes == 1 else ["cuda:0 by gloo"]
    message = f"{', '.join(devices)}; accuracy {end['accuracy']:.3f}; {trial.busiest(run.name)}"
    trial.note(f"05, {nodes} pods with a GPU each", message, right=devices == goal)


def language_model(trial: Trial, cluster: Any, *, copies: int, steps: int = 120) -> None:
    """14: gpt.py, 85 million parameters, bf16"""
    import kitlib as kit

    jobs = [
        kit.IndexedJob(
            "trainers/gpt.py", name=f"gpt-{copies}-{copy}", nodes=1, gpus=1, args=GPT | {"steps": steps}
        )
        for copy in range(copies)
    ]
    watch = cluster.watch(minutes=5)
    runs = trial.finish(cluster, *jobs)
    trial.raw[f"nodes-{copies}"] = [list(map(str, row)) for row in watch.nodes]
    shares = watch.history.percent("gpu")
    watch.stop()
    rates = [run.metrics("step").iloc[-1].to_dict() for run in runs]
    trial.raw[f"gpt-{copies}"] = rates
    message = " and ".join(f"{rate['tokens_per_s']:,.0f} tokens/s, loss {rate['loss']:.2f}" for rate in rates)
    device = runs[0].metrics("start").iloc[0]["device"]
    trial.note(
        f"14, 85 million parameters, bf16, {copies} pods on one GPU",
        f"{message}; {device}",
        right=device == "cuda:0",
    )
    trial.note(f"run.watch() of 14, {copies} pods", "; ".join(trial.busiest(run.name) for run in runs))
    busy = (
        "never"
        if not shares.size
        else f"{max(filter(lambda share: share == share, shares.flat), default=0):.0f} %"
    )
    trial.note(f"cluster.watch() of 14, {copies} pods, busiest", busy, right=busy not in ("never", "0 %"))


def bandwidth(trial: Trial, cluster: Any, *, nodes: int) -> None:
    """trainers/nccl_check.py"""
    import kitlib as kit

    (run,) = trial.finish(
        cluster, kit.IndexedJob("trainers/nccl_check.py", name=f"nccl-{nodes}", nodes=nodes, gpus=1)
    )
    rows, start = run.metrics("bandwidth"), run.metrics("start").iloc[0]
    trial.raw[f"nccl-{nodes}"] = rows.to_dict("records")
    best = rows[rows.operation == "all_reduce"].iloc[-1]
    speed = "algbw" if nodes == 1 else "busbw"
    message = f"{best[speed + '_bytes_per_s'] / 1e9:.1f} GB/s {speed} of {best['bytes'] >> 20} MiB"
    message += f", {start['backend']}"
    trial.note(f"nccl_check.py, {nodes} pods", message, right=not rows["wrong"].any())


def duplicate(trial: Trial, cluster: Any) -> None:
    """NCCL with two ranks on one GPU"""
    import kitlib as kit
    from kitlib.errors import RunFailed

    program = trial.scratch / "duplicate.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1, device='cuda'))\n"
        "torch.cuda.synchronize()\n"
    )
    run = kit.launch(kit.IndexedJob(program, name="duplicate", nodes=2, gpus=1), cluster=cluster)
    try:
        run.wait(timeout=TIMEOUT)
        trial.note("NCCL, two ranks on one GPU", "works")
    except RunFailed as error:
        trial.raw["duplicate"] = str(error)
        trial.note("NCCL, two ranks on one GPU", f"refused; run.why(): {str(run.why()).strip()}"[:400])


# A trial ----------------------------------------------------------------------------------------------------


def run_checks(trial: Trial) -> None:
    """Run all checks, on a cluster that assigns the GPUs to nodes and on one that shares them."""
    import kitlib as kit

    started = time.monotonic()
    with kit.create_cluster("local", name="gpu-dealt", nodes=2, recreate=True) as cluster:
        trial.note("a cluster of two nodes, created in", f"{time.monotonic() - started:.1f} s")
        for check in (discovery, isolation):
            trial.attempt(check, cluster)
        trial.attempt(lambda trial, cluster: digits(trial, cluster, nodes=1), cluster)
        trial.attempt(lambda trial, cluster: language_model(trial, cluster, copies=1), cluster)
        trial.attempt(lambda trial, cluster: bandwidth(trial, cluster, nodes=1), cluster)
    with kit.create_cluster("local", name="gpu-shared", nodes=2, gpus=1, recreate=True) as cluster:
        trial.attempt(discovery, cluster)
        trial.attempt(lambda trial, cluster: digits(trial, cluster, nodes=2), cluster)
        trial.attempt(lambda trial, cluster: language_model(trial, cluster, copies=2), cluster)
        trial.attempt(lambda trial, cluster: bandwidth(trial, cluster, nodes=2), cluster)
        trial.attempt(duplicate, cluster)


def table(machine: dict[str, str], rows: list[tuple[str, str, bool]]) -> str:
    """Write the Markdown report."""
    lines = [
        *machine.items(),
        *((what, figure if right else f"**{figure}**") for what, figure, right in rows),
    ]

    def cells() -> Iterator[str]:
        for what, figure in lines:
            yield f"| {what} | {' '.join(figure.split()).replace('|', '/')} |"

    return "\n".join(["| What | Measured |", "| --- | --- |", *cells()]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Create a pack, or check this machine."""
    parser = argparse.ArgumentParser(description="Check on this machine everything that needs a GPU.")
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="write the packages for a machine without a network"
    )
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("--use", type=Path, metavar="FILE", help="a pack")
    parser.add_argument("--output", type=Path, default=ROOT / "reports")
    options = parser.parse_args(arguments)
    if options.pack:
        pack(options.pack, python=options.python)
        return 0
    if options.use and PACK not in os.environ:
        unpack(options.use)
    trial = Trial()
    try:
        machine = require_gpu()
        run_checks(trial)
    except Missing as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 1
    finally:
        if trial.rows:
            options.output.mkdir(parents=True, exist_ok=True)
            text = table(machine, trial.rows)
            (options.output / "gpu.md").write_text(text)
            (options.output / "gpu.json").write_text(json.dumps(trial.raw, indent=1, default=str))
            print(text, flush=True)
    return 0 if all(right for _, _, right in trial.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
