"""Attendees of a shared cluster: each trains in a namespace of their own, and does nothing elsewhere."""

import json
import random
import secrets
from pathlib import Path

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from trainyard_kit.cli import main as cli

from ..node.clusters import pod

pytestmark = pytest.mark.cluster


@pytest.fixture
def name(local_cluster):
    """Name an attendee; whatever is made of them is deleted after the test."""
    name = f"ada-{secrets.token_hex(2)}"
    yield name
    kit.workshop.remove(name, cluster=local_cluster)


def test_kubectl_reads_as_text_what_is_text(local_cluster, tmp_path):
    """Its parser of YAML takes more for numbers and booleans than the one that writes: 08, 1e3, y."""
    drawn = random.Random(8)
    texts = [
        "".join(drawn.choices("018.eExo_+-:yYnNtTruefalsOFf~", k=drawn.randint(1, 5))) for _ in range(3000)
    ]
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}}
    item["data"] = {str(number): text for number, text in enumerate(["08", "1e3", "0o7", *texts])}
    (tmp_path / "texts.yaml").write_text(manifests.write([item]))
    output = local_cluster.kubectl(f"create --dry-run=client -o json -f {tmp_path / 'texts.yaml'}")
    assert json.loads(output)["data"] == item["data"]


REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 8000), timeout=3).close()
except OSError as error:
    sys.exit(f"not reached: {error}")
print("reached")
"""


def test_pods_of_an_attendee_are_reached_from_their_own_room_alone(local_cluster, name):
    attendee = kit.workshop.add(name, cluster=local_cluster)
    room = local_cluster.kube.in_namespace(attendee.namespace)
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    server = {"image": "python", "command": ["python", "-m", "http.server"], "readinessProbe": probe}
    room.create(pod(name="server", main=server))
    ready = "--for=condition=Ready pod/server --timeout=60s"
    local_cluster.kubectl(f"wait -n {attendee.namespace} {ready}")
    address = room.get("Pod", "server")["status"]["podIP"]
    ask = {"image": "python", "command": ["python", "-c", REACH, address]}
    outside = local_cluster.kube
    for kube, phase in ((room, "Succeeded"), (outside, "Failed")):
        asker = f"asker-{secrets.token_hex(2)}"
        kube.create(pod(name=asker, main=ask))
        local_cluster.kubectl(
            f"wait -n {kube.namespace} --for=jsonpath={{.status.phase}}={phase} pod/{asker} --timeout=60s"
        )
        kube.delete("Pod", asker)


def test_attendees_are_listed_renewed_and_removed_and_only_the_kits_namespaces_are(local_cluster, name):
    main = ["--cluster", local_cluster.name]
    added = CliRunner().invoke(cli.main, ["workshop", "add", name, "--pods", "5", *main])
    assert added.exit_code == 0, added.output
    path = Path(added.stdout.strip())
    assert path.name == f"{name}.kubeconfig"
    before = path.read_text()
    kit.workshop.add(name, cluster=local_cluster, pods=6)
    assert path.read_text() != before
    (row,) = [row for row in kit.workshop.list_attendees(cluster=local_cluster) if row["attendee"] == name]
    assert (row["namespace"], row["pods"], row["kubeconfig"]) == (f"attendee-{name}", "0 of 6", str(path))
    assert "token" not in repr(kit.workshop.list_attendees(cluster=local_cluster)).lower()

    removed = CliRunner().invoke(cli.main, ["workshop", "remove", name, *main])
    assert removed.exit_code == 0, removed.output
    assert local_cluster.kube.find("Namespace", f"attendee-{name}") is None

    local_cluster.kubectl(f"create namespace attendee-{name}")
    try:
        for refused in (kit.workshop.add, kit.workshop.remove):
            with pytest.raises(BadInput, match="not the kit's"):
                refused(name, cluster=local_cluster)
    finally:
        local_cluster.kubectl(f"delete namespace attendee-{name}")
