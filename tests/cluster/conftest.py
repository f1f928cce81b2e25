"""What the tests on a real cluster share: trainers of a few lines, runs that are deleted afterwards."""

import contextlib
import os
import secrets
import textwrap

import pytest

import kitlib as kit
from kitlib.errors import KitError
from kitlib.k8s.priority import ensure_priority_class
from kitlib.k8s.quantities import parse_quantity

from .ranks import STEPS, TRAINER


@pytest.fixture(scope="module")
def own_cluster(state_home):
    """A cluster of a module's own, whose processes and nodes it may stop."""
    name = f"own-{secrets.token_hex(3)}"  # by which its processes are found
    with kit.create_cluster("local", name=name, nodes=3, cpus=1, warm=False) as cluster:
        yield cluster


@pytest.fixture
def write_trainer(tmp_path):
    """Write a trainer and return its path."""

    def write(source: str, name: str = "trainer.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def launch(local_cluster):
    """Launch a job in the shared cluster; whatever is left of it is deleted after the test."""
    launched = []

    def launch_it(job):
        launched.append(job.name)
        return kit.launch(job, cluster=local_cluster)

    yield launch_it
    for name in launched:
        local_cluster.delete_run(name)


@pytest.fixture
def service(local_cluster):
    """The walk-through's Deployment at high priority, with one pod; return how much CPU half a node has.

    Two of its pods fill a node: seven on four nodes leave room for one worker that asks for half of one.
    """
    ensure_priority_class(local_cluster.kube, "high")
    local_cluster.apply("manifests/elastic-scheduling/nginx.yaml")
    half = min(parse_quantity(node["cpu"]) for node in local_cluster.nodes()) / 2
    cpu = f"cpu={0.9 * half:.3f}"
    local_cluster.kubectl(f"set resources deployment test-nginx --requests={cpu} --limits={cpu}")
    local_cluster.kubectl("rollout status deployment test-nginx --timeout=120s")
    yield f"{half:.3f}"
    local_cluster.kubectl("delete deployment test-nginx --cascade=foreground")


@pytest.fixture
def plain(write_trainer):
    """Make a job whose pods run a Python file by itself, without torchrun: it starts in no time."""

    def make(source: str, *, nodes: int = 2, **job):
        job_object = kit.IndexedJob(write_trainer(source), nodes=nodes, **job)
        command = ["python", "/trainyard/trainer/trainer.py"]
        containers = [{"name": "pytorch", "command": command}]
        return job_object.patch(  # a first process without a handler ignores SIGTERM, and stays half a minute
            {"spec": {"template": {"spec": {"containers": containers, "terminationGracePeriodSeconds": 1}}}}
        )

    return make


@pytest.fixture
def train(write_trainer):
    """Launch ranks that train without torch; what is left of them is deleted after the test."""
    runs = []

    def launch_ranks(cluster, *, steps=STEPS, source=TRAINER, nodes=2, job=None, pod=None):
        path = write_trainer(source)
        command = ["python", f"/trainyard/trainer/{path.name}", str(steps)]
        spec = {"containers": [{"name": "pytorch", "command": command}], "terminationGracePeriodSeconds": 1}
        patch = {"spec": (job or {}) | {"template": {"spec": spec | (pod or {})}}}
        runs.append(kit.launch(kit.IndexedJob(path, nodes=nodes).patch(patch), cluster=cluster))
        return runs[-1]

    yield launch_ranks
    for run in runs:
        with contextlib.suppress(KitError):
            run.delete()


@pytest.fixture(scope="module")
def registries(tmp_path_factory):
    """Two registries, which the cluster of this module may use: the second demands a password."""
    from ..node.clusters import list_registry
    from ..unit import oci_images
    from ..unit.image_registry import serve

    before = os.environ.get("XDG_CONFIG_HOME")
    home = tmp_path_factory.mktemp("registries")
    os.environ["XDG_CONFIG_HOME"] = str(home / "config")
    with serve() as registry, serve() as private:
        for address in (registry.address, private.address, "127.0.0.1:1"):
            list_registry(home, address)
        base = oci_images.layer(oci_images.entry("note", b"hello"))
        registry.add(
            "foreign:1", oci_images.index({"linux/s390x": oci_images.image(base, architecture="s390x")})
        )
        registry.add("bare:1", oci_images.image(base))
        private.add("private:1", oci_images.image(base))
        private.credentials = "ada:secret"
        yield {"{registry}": registry.address, "{private}": private.address}
    if before is None:
        del os.environ["XDG_CONFIG_HOME"]
    else:
        os.environ["XDG_CONFIG_HOME"] = before
