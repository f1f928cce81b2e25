"""The peer that trains on one machine without a cluster: the Kubeflow SDK's LocalProcessBackend.

It lives in a virtual environment of its own in the cache. Its jobs take their packages from wheels that lie
beside it, and ask no index: that is the warmest a pip cache can be. The program that drives it is
``peers/kubeflow_local.py``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata as packages
from pathlib import Path

from bench import training
from bench.errors import MeasureFailed, PeerAbsent
from kitlib import config
from localkube.paths import cache_dir

VERSION = "0.5.0"
PROGRAM = Path(__file__).parent / "peers" / "kubeflow_local.py"  # its imports are not ours
NEEDED = ("torch", "numpy", "scikit-learn")  # what digits_ddp.py imports; its MNIST needs more
INSTALL_SECONDS, JOB_SECONDS = 1800, 2400
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Job:
    """One job of the SDK's.

    Attributes:
        times: As of any run.
        torchrun: When its torchrun was started, in seconds since 1970: the environment was ready.
    """

    times: training.Times
    torchrun: float

    @property
    def best(self) -> float:
        """Seconds from torchrun's start to the first step, as if the environment had cost nothing."""
        return self.times.first_step - self.torchrun


def obtain(report: Callable[[str], None]) -> Path:
    """Return the Python of an environment with the SDK; it and its jobs' wheels are obtained if need be.

    Raises:
        PeerAbsent: Something cannot be installed or fetched.
    """
    place = _folder()
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        report(f"installing the Kubeflow SDK {VERSION}, and fetching the wheels of its jobs; minutes")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _install([sys.executable, "-m", "venv", "--clear", str(place)])
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _install([*pip, "install", f"kubeflow=={VERSION}"])
        _install([*pip, "download", f"--dest={place / 'wheels'}", *_needed()])
        (place / "complete").touch()
    return python


def _folder() -> Path:
    versions = "-".join(sorted(requirement.partition("==")[2] for requirement in _needed()))
    return cache_dir() / "bench" / f"kubeflow-{VERSION}-with-{versions}"


def _needed() -> list[str]:
    return [f"{name}=={packages.version(name).partition('+')[0]}" for name in NEEDED]


def _install(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerAbsent(f"installing it took longer than {INSTALL_SECONDS} s") from error
    if done.returncode:
        raise PeerAbsent(f"it cannot be installed: {' | '.join(done.stderr.splitlines()[-3:])}")


def train(python: Path, *, flags: Mapping[str, object], folder: Path) -> Job:
    """Train once by the SDK, with one process.

    Args:
        python: What `obtain` returned.
        flags: The trainer's.
        folder: Where the job makes its environment, of several gigabytes, which goes at its end.

    Raises:
        MeasureFailed: The job failed.
    """
    trainer = str(config.find(training.TRAINER))
    program = [str(python), str(PROGRAM), trainer, json.dumps(dict(flags)), *_needed()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= ONE_THREAD | {
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder),
        "PATH": f"{Path(python).parent}:{os.environ.get('PATH', os.defpath)}",  # whose Python jobs get
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(_folder() / "wheels"),
    }
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )
    lines = done.stdout.splitlines()
    said = [json.loads(line) for line in lines if line.startswith(('{"submitted"', '{"torchrun"'))]
    if done.returncode or len(said) != 2:
        last = (done.stderr.splitlines() or lines)[-4:]
        raise MeasureFailed(f"the SDK's job failed: {' | '.join(last)}")
    facts = said[0] | said[1]
    times = training.read(lines, submitted=facts["submitted"], finished=facts["submitted"], ranks=1)
    return Job(times, facts["torchrun"])
