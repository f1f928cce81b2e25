"""Fixtures of the tests of the kubelet's parts.

What runs ends with the last test of this folder: an idle control plane takes a thirtieth of a core.
"""

import pytest


@pytest.fixture(scope="package")
def bare_control_plane(tmp_path_factory):
    """Yield a running etcd, API server and controller manager without nodes, on loopback."""
    from localkube.controlplane import binaries

    from .bare_control_plane import bare

    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path_factory.mktemp("control-plane"), control_plane) as running:
        yield running


@pytest.fixture
async def api(bare_control_plane):
    """A client of that API server."""
    async with bare_control_plane.api() as client:
        yield client


@pytest.fixture(scope="package")
def cluster(request):
    """Yield a real local cluster of two nodes that declare two GPUs each; all tests share it.

    Its home is below the checkout and not in /tmp, which pods do not see anyway.
    """
    from .clusters import running_cluster, state_home

    with (
        state_home(request.config.cache.mkdir("lab")) as home,
        running_cluster("--nodes", "2", "--gpus", "2", home=home) as running,
    ):
        yield running


@pytest.fixture
def pods(cluster):
    """Make pods in the shared cluster; those that are left are deleted after the test."""
    from .clusters import Pods

    with Pods(cluster) as cluster_pods:
        yield cluster_pods


@pytest.fixture
def created_objects(cluster):
    """Apply manifests; they are deleted after the test."""
    from .workloads import apply, delete

    things = []

    def make(manifest):
        things.append(f"{manifest['kind'].lower()}/{manifest['metadata']['name']}")
        return apply(cluster, manifest)

    yield make
    delete(cluster, *reversed(things))


@pytest.fixture
def registry():
    """A registry of images on this machine, which a test may have misbehave."""
    from ..unit.image_registry import serve

    with serve() as serving:
        yield serving


@pytest.fixture
def store(tmp_path):
    """The place of a store of images."""
    return tmp_path / "store"


@pytest.fixture
def no_configuration(tmp_path, monkeypatch):
    """Neither this user's credentials nor mirrors."""
    from ..unit.oci_images import program

    program()  # before the home is another, in which Go would have no cache
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DOCKER_CONFIG", "XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
