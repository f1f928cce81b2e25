"""Fixtures of the tests of the node agent's parts."""

import pytest


@pytest.fixture(scope="session")
def bare_control_plane(tmp_path_factory):
    """Yield a running etcd, API server and controller manager without nodes, on loopback."""
    from localkube.controlplane import binaries

    from .bare import bare

    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path_factory.mktemp("control-plane"), control_plane) as running:
        yield running
