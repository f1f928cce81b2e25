"""On a real cluster: a neighbour trains, asks DNS and starts pods during every attack, and loses nothing.

How long they wait is recorded and not judged: that is a measure of the machine, and the soak's to judge.
"""

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

import pytest
from soak.attacks import ATTACKS, FINALIZER, pod, shell
from soak.neighbour import Neighbour
from soak.streams import FLOODS, flood

from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from localkube.kubelet.http_server.server import NEW_AT_ONCE, NEW_STREAMS

from ..patience import eventually
from .users import USERS, cluster_of

pytestmark = pytest.mark.namespaces
NAMESPACES = ("ada", "bob")
# Of the kubelet, above what it had: while the objects exist, and soon after they are gone. What stays is free
# memory between what is used, which the next attack uses again. Without bounds it was 118 and 113 MiB.
MAX_BYTES, LEFT_BYTES = 100 << 20, 80 << 20
# These make the kubelet itself work; the others are more of the same kinds.
OF_THE_KUBELET = (
    "expansion_of_open_brackets",
    "expansion_that_doubles",
    "many_volumes",
    "many_tokens",
    "many_keys",
    "many_ports",
)


@pytest.fixture(scope="module", params=USERS)
def cluster(request):
    shape = ("--pid-max", "6000", "--eviction-hard", "")
    with cluster_of(request.param, *shape, cache=request.config.cache) as running:
        for name in NAMESPACES:
            running.kubectl("create", "namespace", name)
            running.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default", "--timeout=60s")
        yield running


@pytest.fixture(scope="module")
def kube(cluster):
    return Kube(Path(cluster.status["kubeconfig"]), cluster="lab")


@pytest.fixture(scope="module")
def neighbour(kube):
    with Neighbour(kube.within("bob")) as running:
        yield running


def attack(cluster, kube, neighbour, names, *, starts):
    """Run attacks at once; return what the neighbour saw meanwhile."""
    ada, kubelet = kube.within("ada"), cluster.process("localkube.kubelet")
    before = kubelet.memory_info().rss
    try:
        with neighbour.watching(starts=starts) as record:
            for item in [item for name in names for item in ATTACKS[name]()]:
                with contextlib.suppress(KitError):  # the API server refuses it, which is as good
                    ada.create(item)
        assert cluster.process("localkube.kubelet") == kubelet
        assert kubelet.memory_info().rss - before < MAX_BYTES
    finally:
        for kind in ("Pod", "PersistentVolumeClaim", "Job"):
            for item in ada.get_all(kind):
                if FINALIZER in item["metadata"].get("finalizers", ()):
                    ada.patch(kind, item["metadata"]["name"], {"metadata": {"finalizers": None}})
        cluster.kubectl(
            "-n", "ada", "delete", "job,pvc,configmap,secret,service", "-l", "soak=attack", "--wait=false"
        )
        pods = ("-n", "ada", "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
        eventually(lambda: (cluster.kubectl(*pods), ada.get_all("Pod"))[1], expected=[])
    eventually(lambda: kubelet.memory_info().rss - before < LEFT_BYTES, expected=True)
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_neighbour_ends_or_is_refused_during(name, cluster, kube, neighbour, record_property):
    record = attack(cluster, kube, neighbour, [name], starts=3)
    record_property("neighbour", record.figures())
    assert record.problems == []


def test_what_one_namespace_has_the_kubelet_compute_and_request_ends_nothing_of_another(
    cluster, kube, neighbour, record_property
):
    record = attack(cluster, kube, neighbour, OF_THE_KUBELET, starts=1)
    record_property("neighbour", record.figures())
    assert record.problems == []


@pytest.fixture(scope="module")
def target(cluster, kube):
    kube.within("ada").create(pod("target", shell("while :; do echo hello; sleep 0.001; done")))
    cluster.kubectl("-n", "ada", "wait", "pod/target", "--for=condition=Ready", "--timeout=120s")
    server = cluster.core.api_client.configuration
    tls = ssl.create_default_context(cafile=server.ssl_ca_cert)
    tls.load_cert_chain(server.cert_file, server.key_file)
    yield f"{server.host}/api/v1/namespaces/ada/pods/target", tls
    kube.within("ada").delete("Pod", "target", grace=0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "exec that writes")) for name in FLOODS]
)
def test_a_flood_of_streams_has_its_namespaces_share_and_ends_nothing_of_a_neighbour(
    name, cluster, neighbour, target, record_property
):
    kubelet, start = cluster.process("localkube.kubelet"), time.monotonic()
    before, url, tls = kubelet.memory_info().rss, *target
    with neighbour.watching() as record:
        counts = asyncio.run(flood(url, name, tls=tls, streams=NEW_AT_ONCE + 100, seconds=8))
        seconds = time.monotonic() - start
        most = kubelet.memory_info().rss
    record_property("neighbour", record.figures())
    record_property("streams", dict(counts))
    assert record.problems == []
    assert cluster.process("localkube.kubelet") == kubelet
    assert counts["opened"] > 0
    assert counts["opened"] <= NEW_AT_ONCE + NEW_STREAMS * seconds
    assert most - before < MAX_BYTES
