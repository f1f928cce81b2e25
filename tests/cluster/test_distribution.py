"""The wheels, installed beside this environment, and used in an empty folder without the clouds' SDKs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from . import kit_wheel

ROOT = Path(__file__).parents[2]
# What `trainyard-kit[clouds]` installs.
SDKS = ("boto3", "botocore", "s3transfer", "google.auth", "google.cloud")
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
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
def run(tmp_path_factory):
    """Run a program in an empty folder, with the wheels' packages before all others, and return its output.

    They are where pods see them, too, as they do not see /tmp; the SDKs of clouds cannot be imported.
    """
    wheel = kit_wheel.build(tmp_path_factory.mktemp("wheel"))
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    packages = Path(tempfile.mkdtemp(prefix="wheel-", dir=ROOT / ".pytest_cache"))
    packages.chmod(0o755)  # for the users of pods
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", packages, *wheel.parent.glob("*.whl")], check=True)

    def call(program, **environment):
        command = [sys.executable, "-c", f"import sys; sys.modules |= dict.fromkeys({SDKS})\n{program}"]
        env = os.environ | {"PYTHONPATH": str(packages)} | environment
        folder = tmp_path_factory.mktemp("empty")
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield call
    shutil.rmtree(packages)


def test_an_installed_kit_finds_manifests_and_programs_without_a_checkout(run):
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
    files, kinds, codes, where = json.loads(run(program))
    folders = ["docs", "images", "manifests", "notebooks", "programs", "trainers"]
    tracked = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(tracked.stdout.split()) <= set(files)
    assert {"Job", "PyTorchJob", "ConfigMap"} <= set(kinds)
    assert codes == [True]
    packages = Path(where).parents[1]
    assert packages.name.startswith("wheel-")
    command = ["git", "ls-files", "kitlib/*.py", "localkube/*.py", "trainyard_kit/*.py"]
    modules = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert [module for module in modules if not (packages / module).is_file()] == []


def test_commands_that_name_a_file_of_ours_find_it_in_an_installed_environment(run):
    program = """
from kitlib import config
from trainyard_kit.workshop import notebook_rehearsal, notebook_reset, progress_reporter
every = dict(notebook_reset._created_objects())
print(notebook_reset._choose("05", every), len(every) > 15, len(progress_reporter.cells()) > 300)
print((config.DATA / notebook_rehearsal.RUNNER).is_file())
print(sorted(path.name for path in (config.DATA / "tools").glob("*.py")))
"""
    lines = run(program).splitlines()
    assert lines == ["['05'] True True", "True", "['run_notebooks.py']"]
    start = "import subprocess, sys; from kitlib import config; "
    start += (
        "subprocess.run([sys.executable, config.DATA / 'tools' / 'run_notebooks.py', '--help'], check=True)"
    )
    assert "--provider" in run(start)


@pytest.mark.slow
def test_the_quick_start_of_the_readme_runs_in_an_installed_environment(run):
    short = Path(os.environ.get("TMPDIR", "/tmp"), f"ty-wheel-{os.getpid()}")  # a Unix socket's path is short
    try:
        output = run(GUARDED, XDG_STATE_HOME=str(short))
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert output.splitlines()[-1] == "0 clusters left"
