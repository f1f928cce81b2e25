"""A bundle end to end: made from this machine's cache, used where every network is denied, and a pod runs.

The denied network is a network namespace with a loopback device alone; the cache there is a new one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.bundles import pack
from localkube.controlplane import programs

from .clusters import state_home
from .restrictions import REPOSITORY

OFFLINE = Path(__file__).parent / "programs" / "offline.py"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may deny itself the network with unshare")
def test_a_machine_without_a_network_runs_pods_from_a_bundle(request, tmp_path):
    programs.obtain(["etcd-v2"], report=lambda text: None)
    bundle = tmp_path / "trainyard.tar.gz"
    pack.create_bundle(bundle, with_wheels=False, report=lambda text: None)
    with state_home(Path(request.config.cache.mkdir("offline"))) as home:
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
        }
        command = ["unshare", "--net", sys.executable, str(OFFLINE), str(bundle)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "etcd Version: 3.4.13" in done.stdout, done.stdout + done.stderr
