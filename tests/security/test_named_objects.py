"""What a pod names is an object of its own namespace, or nothing: no name leads to another's."""

import json
import ssl
import urllib.error
import urllib.request

import pytest
from kubernetes import client

from ..node.clusters import eventually

BOB, MALLORY = "attendee-bob", "attendee-mallory"
SECRET = "bobs-own-word"
NAMES = {
    "traversal": f"../../{BOB}/{{kind}}/{{name}}",
    "to the system": "../../kube-system/{kind}/{name}",
    "through its own": f"own/../../../{BOB}/{{kind}}/{{name}}",
    "encoded": f"%2e%2e/%2e%2e/{BOB}/{{kind}}/{{name}}",
    "encoded twice": f"%252e%252e%252f%252e%252e%252f{BOB}%252f{{kind}}%252f{{name}}",
    "encoded whole": f"%2e%2e%2f%2e%2e%2f{BOB}%2f{{kind}}%2f{{name}}",
    "namespace and name": f"{BOB}/{{name}}",
    "dots": "..",
    "query": "own?fieldSelector=x",
    "NUL": "own\0",
    "long": "x" * 300,
}
# Of paths of the API; of a claim that names a volume, or a source, of no namespace; of what needs a driver.
REFUSALS = (
    "invalid resource name",
    "Unable to retrieve some image pull secrets",
    "is not bound yet",
    "not available in a local cluster",
)


def volume(**source):
    return {"volumes": [{"name": "v", **source}]}


def ephemeral(**fields):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}} | fields
    return volume(ephemeral={"volumeClaimTemplate": {"spec": spec}})


def projected(**source):
    return volume(projected={"sources": [source]})


def variable(**source):
    return {"env": [{"name": "V", "valueFrom": source}]}


# What names an object: its kind, and the part of a pod with it; ``main`` is the container's.
PLACES = {
    "secret": ("secrets", lambda name: volume(secret={"secretName": name})),
    "optional secret": ("secrets", lambda name: volume(secret={"secretName": name, "optional": True})),
    "configMap": ("configmaps", lambda name: volume(configMap={"name": name})),
    "projected secret": ("secrets", lambda name: projected(secret={"name": name})),
    "projected configMap": ("configmaps", lambda name: projected(configMap={"name": name})),
    "claim": ("persistentvolumeclaims", lambda name: volume(persistentVolumeClaim={"claimName": name})),
    "pull secret": ("secrets", lambda name: {"imagePullSecrets": [{"name": name}]}),
    "env secret": ("secrets", lambda name: {"main": variable(secretKeyRef={"name": name, "key": "word"})}),
    "env configMap": (
        "configmaps",
        lambda name: {"main": variable(configMapKeyRef={"name": name, "key": "word"})},
    ),
    "envFrom secret": ("secrets", lambda name: {"main": {"envFrom": [{"secretRef": {"name": name}}]}}),
    "envFrom configMap": (
        "configmaps",
        lambda name: {"main": {"envFrom": [{"configMapRef": {"name": name}}]}},
    ),
    "account": ("serviceaccounts", lambda name: {"serviceAccountName": name}),
    "priority class": ("priorityclasses", lambda name: {"priorityClassName": name}),
    "runtime class": ("runtimeclasses", lambda name: {"runtimeClassName": name}),
    "node": ("nodes", lambda name: {"nodeName": name}),
    "device claim": (
        "resourceclaims",
        lambda name: {"resourceClaims": [{"name": "c", "resourceClaimName": name}]},
    ),
    "device claim template": (
        "resourceclaimtemplates",
        lambda name: {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": name}]},
    ),
    "ephemeral class": ("storageclasses", lambda name: ephemeral(storageClassName=name)),
    "ephemeral volume": ("persistentvolumes", lambda name: ephemeral(volumeName=name)),
    "ephemeral source": (
        "persistentvolumeclaims",
        lambda name: ephemeral(dataSource={"kind": "PersistentVolumeClaim", "name": name}),
    ),
    "driver's secret": (
        "secrets",
        lambda name: volume(csi={"driver": "a.example.com", "nodePublishSecretRef": {"name": name}}),
    ),
    "trust bundle": (
        "clustertrustbundles",
        lambda name: projected(clusterTrustBundle={"name": name, "path": "bundle"}),
    ),
    "token's path": ("secrets", lambda name: projected(serviceAccountToken={"path": name})),
    "secret's path": (
        "secrets",
        lambda name: volume(secret={"secretName": "own", "items": [{"key": "word", "path": name}]}),
    ),
    "volume": ("secrets", lambda name: {"volumes": [{"name": name, "emptyDir": {}}]}),
    "hostname": ("pods", lambda name: {"hostname": name}),
    "subPath": (
        "secrets",
        lambda name: (
            volume(emptyDir={})
            | {"main": {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": name}]}}
        ),
    ),
}
# None of the pod's names leads anywhere, so that it runs; that it has nothing of another's is checked.
RUNS = {"subPath", "token's path", "secret's path"}


@pytest.fixture(scope="module")
def namespaces(cluster):
    for name in (BOB, MALLORY):
        cluster.core.create_namespace({"metadata": {"name": name}})
    for name, (secret, configmap) in {BOB: ("top", "top"), MALLORY: ("own", "own")}.items():
        cluster.core.create_namespaced_secret(
            name, {"metadata": {"name": secret}, "stringData": {"word": SECRET}}
        )
        cluster.core.create_namespaced_config_map(
            name, {"metadata": {"name": configmap}, "data": {"word": SECRET}}
        )
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    cluster.core.create_namespaced_persistent_volume_claim(BOB, {"metadata": {"name": "top"}, "spec": spec})
    eventually(lambda: accounts(cluster, MALLORY) >= 1)
    yield
    for name in (BOB, MALLORY):
        cluster.core.delete_namespace(name, grace_period_seconds=0)


def accounts(cluster, namespace):
    return len(cluster.core.list_namespaced_service_account(namespace).items)


def attack(place, way):
    """Build a pod of mallory's that names an object of bob's."""
    kind, part = PLACES[place]
    spec = part(NAMES[way].format(kind=kind, name="top"))
    mounts = [{"name": "v", "mountPath": "/v"}] if "volumes" in spec and place != "volume" else []
    main = {"name": "main", "image": "busybox", "volumeMounts": mounts} | spec.pop("main", {})
    main["command"] = ["sh", "-c", "env; find /v -type f -exec cat {} +; echo spoilt > /v/spoilt; sleep 600"]
    name = f"{place}-{way}".lower().replace(" ", "-").replace("'", "")
    # Bound by its author, so that no scheduler looks at claims.
    body = {"nodeName": "node-0", "automountServiceAccountToken": False, "containers": [main]}
    return {"metadata": {"name": name}, "spec": body | spec}


def events_by_pod(cluster):
    messages = {}
    for event in cluster.core.list_namespaced_event(MALLORY).items:
        messages.setdefault(event.involved_object.name, []).append(event.message)
    return messages


def statuses(cluster):
    return json.loads(cluster.kubectl("get", "pods", "-n", MALLORY, "-o", "json"))["items"]


def reason(pod):
    state = (pod["status"].get("containerStatuses") or [{"state": {}}])[0]["state"]
    waiting = state.get("waiting") or {}
    return waiting.get("message") or waiting.get("reason")


@pytest.mark.timeout(600)
def test_no_name_in_a_pod_leads_to_an_object_of_another_namespace(cluster, namespaces):
    kubelet = cluster.process("localkube.kubelet")
    accepted, refused = {}, 0
    for place in PLACES:
        for way in NAMES:
            pod = attack(place, way)
            try:
                cluster.core.create_namespaced_pod(MALLORY, pod)
                accepted[pod["metadata"]["name"]] = place
            except client.ApiException as error:
                assert error.status in (403, 404, 422) or REFUSALS[0] in error.body, (place, way)  # noqa: PT017
                refused += 1
    assert refused
    waiting = {name for name, place in accepted.items() if place not in {*RUNS, "pull secret", "node"}}
    assert waiting

    def unexplained():
        """Name the pods that neither an Event nor their status says the reason of."""
        messages = events_by_pod(cluster)
        for pod in statuses(cluster):
            messages.setdefault(pod["metadata"]["name"], []).append(reason(pod))
        return sorted(
            name for name in waiting if not any(text in str(messages.get(name)) for text in REFUSALS)
        )

    eventually(unexplained, expected=[])
    assert cluster.process("localkube.kubelet").pid == kubelet.pid
    for pod in statuses(cluster):
        name = pod["metadata"]["name"]
        if name in waiting:
            assert "running" not in str(pod["status"].get("containerStatuses")), name
        elif "running" in str(pod["status"].get("containerStatuses")):
            log = cluster.kubectl("logs", "-n", MALLORY, name)
            assert accepted[name] == "secret's path" or SECRET not in log, name
    assert not list((cluster.root / "volumes").rglob("spoilt"))
    assert not list((cluster.root / "pods").glob("*/spoilt"))


def status_of(cluster, client_name, path, *, method="GET", body=None):
    pki = cluster.root / "pki"
    tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    tls.load_cert_chain(pki / f"{client_name}.crt", pki / f"{client_name}.key")
    request = urllib.request.Request(
        f"https://127.0.0.1:{cluster.status['api_port']}{path}", method=method, data=body
    )
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, context=tls, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_node_and_what_serves_all_nodes_read_what_pods_name_and_nothing_else(cluster, namespaces):
    pod = attack("secret", "dots")
    pod["metadata"]["name"] = "honest"
    pod["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "own"}}]
    cluster.core.create_namespaced_pod(MALLORY, pod)
    own_path, foreign_path = (f"/api/v1/namespaces/{name}" for name in (MALLORY, BOB))
    eventually(lambda: status_of(cluster, "node-node-0", f"{own_path}/secrets/own"), expected=200)
    for path in (
        f"{foreign_path}/secrets/top",
        f"{foreign_path}/configmaps/top",
        f"{foreign_path}/persistentvolumeclaims/top",
        f"{own_path}/configmaps/own",
        f"{own_path}/secrets",
        "/api/v1/secrets",
        "/api/v1/pods",
        "/api/v1/nodes/node-1",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
    ):
        assert status_of(cluster, "node-node-0", path) == 403, path
    for part in ("informers", "provisioner"):
        for path in ("/api/v1/secrets", f"{own_path}/secrets/own", "/api/v1/configmaps"):
            assert status_of(cluster, part, path) == 403, (part, path)
        body = json.dumps(pod | {"metadata": {"name": "planted"}}).encode()
        assert status_of(cluster, part, f"{own_path}/pods", method="POST", body=body) == 403
    token = f"{foreign_path}/serviceaccounts/default/token"
    body = json.dumps({"spec": {}}).encode()
    assert status_of(cluster, "node-node-0", token, method="POST", body=body) == 403
