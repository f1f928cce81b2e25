"""A minute and a half of `make soak`, as this user and as one without privileges."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .restrictions import NOBODY, REPOSITORY
from .unprivileged import enter_as_nobody, nobodys

pytestmark = [pytest.mark.cluster, pytest.mark.namespaces, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(params=["as this user", "as nobody"])
def user(request, tmp_path):
    """Return a directory of a user's, and the options of ``subprocess`` for their command."""
    if request.param == "as this user":
        yield tmp_path, {"cwd": REPOSITORY}
        return
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory(prefix="nobody-") as home:
        os.chown(home, NOBODY, NOBODY)
        options = nobodys(Path(home))
        yield (
            Path(home),
            options | {"env": os.environ | options["env"], "preexec_fn": enter_as_nobody(Path(home))},
        )


@pytest.mark.timeout(1800)
def test_after_a_minute_of_disturbances_nothing_is_lost_and_nothing_is_left(user):
    folder, options = user
    command = [sys.executable, str(REPOSITORY / "tools" / "soak_cluster.py"), "--seed=3"]
    short = ["--hours=0.025", "--attendees=3", f"--logs={folder}"]
    done = subprocess.run([*command, *short], capture_output=True, text=True, check=False, **options)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and not lines[-1].get("problems", [done.stderr]), done.stdout[-8000:]
    assert done.returncode == 0
    assert lines[-1]["acknowledged"] > 10
