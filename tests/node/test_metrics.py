"""What kubectl top shows, from the real metrics-server, and what the nodes say of themselves."""

import contextlib
import subprocess

import pytest

from .clusters import eventually, pod, python

BUSY = "import time\nheld = bytearray(64 << 20)\nwhile True: sum(range(20000)); time.sleep(0.01)"
FAMILIES = (
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "pod_cpu_usage_seconds_total",
    "pod_memory_working_set_bytes",
    "scrape_error",
)


@pytest.fixture(scope="module")
def busy(cluster):
    """A pod that computes now and then, and holds 64 MiB."""
    from .clusters import Pods

    with Pods(cluster) as pods:
        yield pods.running(pod(main=python(BUSY)))


def series(cluster, node):
    """Return the samples of ``/metrics/resource`` of a node, by name and labels."""
    text = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics/resource")
    lines = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
    return {words[0]: float(words[1]) for words in lines}


def test_a_node_tells_of_its_own_pods_in_the_kubelets_words(cluster, busy):
    name, node = busy["metadata"]["name"], busy["spec"]["nodeName"]
    labels = f'{{container="main",namespace="default",pod="{name}"}}'
    memory = f"container_memory_working_set_bytes{labels}"
    eventually(lambda: series(cluster, node).get(memory, 0) > 64 << 20)
    samples = series(cluster, node)
    assert {key.partition("{")[0] for key in samples} >= set(FAMILIES)
    assert samples[memory] < 120 << 20
    assert samples["scrape_error"] == 0
    (other_node,) = {"node-0", "node-1"} - {node}
    assert not any(name in key for key in series(cluster, other_node))


def test_the_time_that_is_counted_never_falls_while_children_come_and_go(cluster, pods):
    script = "while true; do python3 -c 'sum(range(300000))'; done"
    running = pods.running(pod(script))
    name, node = running["metadata"]["name"], running["spec"]["nodeName"]
    key = f'container_cpu_usage_seconds_total{{container="main",namespace="default",pod="{name}"}}'
    readings = []

    def enough():
        readings.append(series(cluster, node).get(key, 0.0))
        return readings[-1] > readings[0] + 0.3

    eventually(enough)
    assert readings == sorted(readings)


def test_nobody_but_metrics_server_and_the_api_server_may_ask(cluster):
    """The scheduler's certificate is of the same authority, and has no business here."""
    pki, script = cluster.root / "pki", "import ssl, http.client, sys\n"
    script += "context = ssl.create_default_context(cafile=sys.argv[1] + '/ca.crt')\n"
    script += (
        "context.load_cert_chain(*(sys.argv[1] + '/' + sys.argv[2] + end for end in ('.crt', '.key')))\n"
    )
    script += "link = http.client.HTTPSConnection(sys.argv[4], 10250, context=context)\n"
    script += "link.request('GET', sys.argv[3])\nprint(link.getresponse().status)\n"
    kubelet = cluster.process("localkube.kubelet")
    # In plain mode the kubelet is in this network, and node-0's address on the loopback interface.
    listening = [socket.laddr.ip for socket in kubelet.net_connections() if socket.laddr.port == 10250]
    address = next((address for address in listening if address.endswith(".254.1")), "10.244.254.1")

    def status_of(client, path):
        command = ["nsenter", "-t", str(kubelet.pid), "-n", "python3", "-c", script]
        command += [str(pki), client, path, address]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert status_of("scheduler", "/metrics/resource") == 403
    assert status_of("metrics-server", "/metrics/resource") == 200
    assert status_of("metrics-server", "/stats/summary") == 403
    assert status_of("metrics-server", "/containerLogs/default/a/b") == 403


def answer_of(cluster, node):
    """Return the samples of a node; none while it does not answer."""
    with contextlib.suppress(subprocess.CalledProcessError):
        return series(cluster, node)
    return {}


def test_another_metrics_server_works_beside_the_kubelet(cluster):
    """As in its published manifest: an APIService without a certificate, which excludes ours."""
    spec = {"group": "metrics.k8s.io", "version": "v1beta1"}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"insecureSkipTLSVerify": True, "service": {"name": "metrics-server", "namespace": "kube-system"}}
    published = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": spec}
    published["metadata"] = {"name": "v1beta1.metrics.k8s.io"}
    log, kept = (
        cluster.root / "logs" / "kubelet.log",
        "apiservices/v1beta1.metrics.k8s.io has another manager",
    )
    created = ("wait", "apiservice/v1beta1.metrics.k8s.io", "--for=create", "--timeout=120s")
    cluster.kubectl(*created)
    try:
        cluster.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")
        cluster.kubectl("create", "-f", "-", stdin=published)
        cluster.process("localkube.kubelet").kill()
        eventually(lambda: kept in log.read_text())
        kubelet = cluster.process("localkube.kubelet")
        eventually(lambda: "scrape_error" in answer_of(cluster, "node-0"))
        assert cluster.process("localkube.kubelet") == kubelet
    finally:
        cluster.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")
        cluster.process("localkube.kubelet").kill()
        cluster.kubectl(*created)
