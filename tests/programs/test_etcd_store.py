"""torch's own rendezvous at the etcd that the kit's manifests name."""

import os
import socket

import pytest

from localkube.controlplane import programs

from .elastic_processes import ElasticRun
from .forked import TORCHRUN, Program

pytestmark = pytest.mark.timeout(300)


def listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_torchrun_renews_its_lease_at_the_store_and_reports_no_traceback(tmp_path):
    """A thread of torch's renews the TTL of the run's directory, first at once: etcd 3.5 refuses that."""
    (etcd,) = programs.obtain(["etcd-v2"], report=lambda text: None)
    program = tmp_path / "program.py"
    program.write_text("import os; print('rank', os.environ['RANK'])")
    with ElasticRun(tmp_path, backend="etcd", etcd=etcd.path) as run:
        run.wait_for(lambda: listens(run.port), "etcd to listen")
        store = ["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{run.port}", "--rdzv_id=lease"]
        words, errors = [*store, "--nnodes=1:1", str(program)], tmp_path / "errors"
        torchrun = Program(TORCHRUN, *words, environment=os.environ, errors=errors)
        output, _ = torchrun.communicate()
    assert (torchrun.returncode, output) == (0, "rank 0\n"), errors.read_text()
    assert "Traceback" not in errors.read_text() and "Not a file" not in errors.read_text()
