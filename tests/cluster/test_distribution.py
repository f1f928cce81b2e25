"""The wheel, installed in another environment without the clouds' SDKs, and used in an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import pytest

from . import kit_wheel

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))
# What `trainyard-kit[clouds]` installs.
SDKS = ("boto3", "botocore", "s3transfer")
QUICK_START = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[
    1
]
GUARDED = f"""
import kitlib as kit
try:
    exec({QUICK_START!r})
finally:
    for each in kit.list_clusters():
        kit.connect(each["cluster"]).delete()
print(len(kit.list_clusters()), "clusters left")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from what git tracks."""
    return kit_wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel):
    """The Python of an environment with the wheel and hard links to this one's packages, but for the SDKs.

    A container sees the environment's folder, but nothing else of /tmp: links out of it would lead nowhere.
    """
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=ROOT / ".pytest_cache"))
    folder.chmod(0o755)  # for the users of pods
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    shutil.copytree(SITE, site, copy_function=link, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", site, *wheel.parent.glob("*.whl")], check=True)
    script = folder / "bin" / "torchrun"  # which pip makes of torch's entry point
    script.write_text(f"#!{folder}/bin/python\nfrom torch.distributed.run import main\nmain()\n")
    script.chmod(0o755)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


def link(source, target):
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy(source, target)


def left_out(folder, names):
    """Leave out the editable installation and the SDKs; of the namespace google, protobuf stays."""
    if Path(folder) == SITE / "google":
        return {name for name in names if name not in ("protobuf", "_upb")}
    if Path(folder) != SITE:
        return set()
    ours = {name for name in names if "trainyard" in name or name.endswith(".pth")}
    return ours | {name for name in names if name.removesuffix(".py") in SDKS}


def run(python, program, folder, **environment):
    """Run a program in an empty folder, and return what it prints."""
    folder.mkdir(exist_ok=True)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    done = subprocess.run(
        [python, "-c", program], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_kit_finds_manifests_and_programs_without_a_checkout(python, tmp_path):
    program = """
import json
from pathlib import Path
import kitlib as kit, localkube
from trainyard_kit import workshop
from kitlib import config
from kitlib.operators.catalog import OPERATORS
files = {str(each.relative_to(config.DATA)) for each in config.DATA.rglob("*") if each.is_file()}
jobs = [kit.IndexedJob("trainers/digits_ddp.py", nodes=2), kit.PyTorchJob("trainers/cifar10_ddp.py", nodes=2)]
jobs += [kit.TorchElastic("trainers/digits_elastic.py", nodes=2), kit.DatasetJob("digits", volume="shared")]
kinds = [each["kind"] for job in jobs for each in job.objects]
codes = [(config.DATA / part.code).is_file() for parts in OPERATORS.values() for part in parts if part.code]
print(json.dumps([sorted(files), kinds, codes, kit.__file__]))
"""
    files, kinds, codes, where = json.loads(run(python, program, tmp_path / "empty"))
    folders = ["docs", "images", "manifests", "notebooks", "programs", "trainers"]
    tracked = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(tracked.stdout.split()) <= set(files)
    assert {"Job", "PyTorchJob", "ConfigMap"} <= set(kinds)
    assert codes == [True]
    assert Path(where).parents[1].name == "site-packages"


def test_commands_that_name_a_file_of_ours_find_it_in_an_installed_environment(python, tmp_path):
    program = """
from kitlib import config
from trainyard_kit.workshop import notebook_rehearsal, notebook_reset, progress_reporter
every = dict(notebook_reset._created_objects())
print(notebook_reset._choose("05", every), len(every) > 15, len(progress_reporter.cells()) > 300)
print((config.DATA / notebook_rehearsal.RUNNER).is_file())
print(sorted(path.name for path in (config.DATA / "tools").glob("*.py")))
"""
    lines = run(python, program, tmp_path / "empty").splitlines()
    assert lines == ["['05'] True True", "True", "['run_notebooks.py']"]
    start = "import subprocess, sys; from kitlib import config; "
    start += (
        "subprocess.run([sys.executable, config.DATA / 'tools' / 'run_notebooks.py', '--help'], check=True)"
    )
    assert "--provider" in run(python, start, tmp_path / "empty")


@pytest.mark.slow
def test_the_quick_start_of_the_readme_runs_in_an_installed_environment(python, tmp_path):
    short = Path(os.environ.get("TMPDIR", "/tmp"), f"ty-wheel-{os.getpid()}")  # a Unix socket's path is short
    try:
        output = run(python, GUARDED, tmp_path / "empty", XDG_STATE_HOME=str(short))
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert output.splitlines()[-1] == "0 clusters left"
