"""Which commands may be forked by the forkserver, and what they would run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.runtime.forkserver.command import COLD_TORCHRUN, cold_command, plan, unfit


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A directory like an environment's bin, with a python, an alias and two console scripts."""
    directory = tmp_path / "environment" / "bin"
    directory.mkdir(parents=True)
    (directory / "python").symlink_to(sys.executable)
    (directory / "python3").symlink_to("python")
    scripts = {"torchrun": f"#!{directory}/python3", "shown": "#!/usr/bin/env python", "other": "#!/bin/sh"}
    for name, first in scripts.items():
        (directory / name).write_text(first + "\npass\n")
        (directory / name).chmod(0o755)
    return directory


def plan_of(environment: Path, *argv: str, **env: str):
    env = {"LANG": "C.UTF-8"} | env
    return plan(argv, env, python=str(environment / "python"), path=f"/nowhere:{environment}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("argv", "kind", "target", "arguments"),
    [
        (("python", "train.py", "-u", "x"), "script", "train.py", ["-u", "x"]),
        (("python3", "-u", "train.py"), "script", "train.py", []),
        (("python", "-uB", "-m", "pkg.mod", "--flag"), "module", "pkg.mod", ["--flag"]),
        (("python", "-mpkg"), "module", "pkg", []),
        (("python", "-c", "print(1)", "-c"), "command", "print(1)", ["-c"]),
    ],
)
def test_a_python_command_of_the_environment_is_forked(environment, argv, kind, target, arguments):
    planned = plan_of(environment, *argv)
    assert (planned["kind"], planned["target"], planned["arguments"]) == (kind, target, arguments)
    assert planned["argv"] == list(argv)
    assert planned["executable"] == str(environment / argv[0])


def test_a_console_script_in_a_path_with_spaces_has_its_interpreter(
    tmp_path,
):
    """The text is the one that uv and pip write there."""
    directory = tmp_path / "my clone" / "bin"
    directory.mkdir(parents=True)
    (directory / "python").symlink_to(sys.executable)
    python, script = directory / "python", directory / "torchrun"
    script.write_text(f"""#!/bin/sh\n'''exec' '{python}' "$0" "$@"\n' '''\nprint("ran")\n""")
    script.chmod(0o755)
    planned = plan(["torchrun", "x"], {"LANG": "C.UTF-8"}, python=str(python), path=str(directory))
    assert planned["argv"] == [str(python), str(script), "x"]
    assert (planned["comm"], planned["executable"]) == ("python", str(python))


def test_a_console_script_is_run_by_the_interpreter_in_its_first_line(environment):
    planned = plan_of(environment, "torchrun", "--nproc-per-node=2", "train.py")
    assert planned["argv"] == [
        f"{environment}/python3",
        f"{environment}/torchrun",
        "--nproc-per-node=2",
        "train.py",
    ]
    assert (planned["comm"], planned["target"]) == ("torchrun", f"{environment}/torchrun")
    planned = plan_of(environment, "shown")
    assert planned["argv"] == ["python", f"{environment}/shown"]
    assert (planned["comm"], planned["executable"]) == ("python", f"{environment}/python")


@pytest.mark.parametrize(
    ("argv", "mounts", "prefixed"),
    [
        (("torchrun", "train.py"), ["/data"], True),
        (("python", "-m", "torch.distributed.run", "train.py"), [], True),
        (("python", "train.py"), [], False),
        (("torchrun", "train.py"), ["/data", "{environment}/"], False),  # another interpreter
    ],
)
def test_only_torchrun_of_this_interpreter_forks_its_workers_without_a_forkserver(
    environment, argv, mounts, prefixed
):
    planned = plan_of(environment, *argv)
    command = cold_command(planned, mounts=[mount.format(environment=environment) for mount in mounts])
    prefix = [planned["executable"], "-P", "-m", COLD_TORCHRUN] if prefixed else []
    assert command == [*prefix, *argv]


@pytest.mark.parametrize(
    "argv",
    [
        ("python",),
        ("python", "-"),
        ("python", "-i", "x.py"),
        ("python", "-O", "x.py"),
        ("python", "-I", "x.py"),
        ("python", "-X", "dev", "x.py"),
        ("python", "-Wignore", "x.py"),
        ("python", "-c"),
        ("python", "--version"),
        ("sh", "-c", "python x.py"),
        ("other",),
        ("missing",),
        ("./python", "x.py"),
        ("/usr/bin/env", "python", "x.py"),
        (os.path.realpath(sys.executable), "x.py"),
    ],
)
def test_commands_that_a_fork_cannot_run_start_cold(environment, argv):
    assert plan_of(environment, *argv) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTHONHASHSEED", "0"),
        ("PYTHONWARNINGS", "ignore"),
        ("PYTHONOPTIMIZE", "1"),
        ("PYTHONHOME", "/x"),
        ("PYTHONUTF8", "1"),
        ("LD_PRELOAD", "x.so"),
        ("LD_LIBRARY_PATH", "/x"),
        ("MALLOC_ARENA_MAX", "1"),
        ("OMP_PROC_BIND", "close"),
        ("OMP_NUM_THREADS", "4,2"),
        ("OMP_WAIT_POLICY", "ACTIVE"),
        ("KMP_AFFINITY", "none"),
        ("MKL_DYNAMIC", "FALSE"),
        ("TORCH_LOGS", "all"),
        ("LOGLEVEL", "INFO"),
        ("LC_ALL", "C"),
        ("LANG", "de_DE.ISO-8859-1"),
        ("LANG", ""),
    ],
)
def test_a_variable_that_is_read_once_at_the_start_makes_it_cold(environment, name, value):
    assert plan_of(environment, "python", "x.py", **{name: value}) is None


def test_variables_that_can_be_obeyed_later_do_not(environment):
    free = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "/x", "PYTHONHASHSEED": "random", "OMP_NUM_THREADS": "2"}
    free |= {"OMP_WAIT_POLICY": "PASSIVE"}
    free |= {"LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO", "TORCHELASTIC_RUN_ID": "x"}
    assert plan_of(environment, "python", "x.py", **free)["unbuffered"]
    assert not plan_of(environment, "python", "x.py", PYTHONUNBUFFERED="0")["unbuffered"]
    assert plan_of(environment, "python", "x.py", PYTHONDONTWRITEBYTECODE="x")["no_bytecode"]


# Read by the imports, but only to find a home, a name, temporary files, or certificates; or harmless.
HARMLESS = {
    "PYTHONUSERBASE",  # a fork follows it
    "HOME",
    "LNAME",
    "LOGNAME",
    "USER",
    "USERNAME",
    "TEMP",
    "TMP",
    "TMPDIR",
    "PATH",
    "LANG",
    "LC_CTYPE",
}
RECORDER = """
import os, sys
seen = set()
original = os._Environ.__getitem__
def read(self, name):
    # tqdm looks at every variable for names of its own.
    if "tqdm" not in sys._getframe(2).f_code.co_filename:
        seen.add(name)
    return original(self, name)
os._Environ.__getitem__ = read
import importlib
from localkube.runtime.forkserver.server import MODULES
seen.clear()
for module in MODULES:
    importlib.import_module(module)
print("\\n".join(sorted(seen)))
"""


@pytest.mark.slow
def test_every_variable_that_the_imports_read_is_one_that_starts_a_command_cold():
    names = subprocess.run(
        [sys.executable, "-c", RECORDER], capture_output=True, text=True, check=True
    ).stdout
    missed = [
        name
        for name in names.split()
        if unfit({"LANG": "C.UTF-8", name: "x"}) is None and name not in HARMLESS
    ]
    assert not missed
