"""Capacity, network isolation, shared volumes and names of a workshop, before anything is created."""

import base64
import stat
import zipfile
from types import SimpleNamespace

import pytest

import kitlib as kit
from kitlib.clusters import LocalCluster
from kitlib.display.progress import Progress
from kitlib.display.tables import Table
from kitlib.errors import BadInput, Rejected
from trainyard_kit.clouds.price_table import describe_price
from trainyard_kit.workshop import attendees, capacity, rehearsal, staging
from trainyard_kit.workshop.attendees import Attendee, Quota, write_handout
from trainyard_kit.workshop.jupyter import token_of
from trainyard_kit.workshop.staging import read_only

from . import objects
from .objects import node


def pod(cpu, phase="Running"):
    return objects.pod(phase=phase, containers=[{"name": "c", "resources": {"requests": {"cpu": cpu}}}])


@pytest.mark.parametrize(
    ("people", "quota", "nodes", "foreign_pods", "enough", "missing"),
    [
        (4, Quota(cpu="1", memory="1Gi"), [node()], [], True, 0),
        (4, Quota(cpu="1", memory="1Gi"), [node()], [pod("500m")], False, 1),
        (4, Quota(cpu="1", memory="1Gi"), [node()], [pod("500m", phase="Succeeded")], True, 0),
        (30, Quota(cpu="1", memory="2Gi"), [node()], [], False, 7),
        (30, Quota(cpu="100m", memory="4Gi"), [node(), node(ready="False")], [], False, 7),
        (3, Quota(cpu="1", memory="1Gi", gpus=1), [node(gpus="1")], [], False, 2),
        (3, Quota(cpu="1", memory="1Gi", gpus=1), [node()], [], False, None),
        (3, Quota(), [], [], False, None),
    ],
    ids=str,
)
def test_room_is_what_the_quotas_of_all_come_to(people, quota, nodes, foreign_pods, enough, missing):
    room = capacity.count(people, quota, nodes, foreign_pods)
    assert (room.enough, room.missing) == (enough, missing)
    assert "of quotas" in str(room)


def of_pool(pool, **more):
    return node(labels={"trainyard/pool": pool} if pool else {}, **more)


@pytest.mark.parametrize(
    ("nodes", "training", "missing"),
    [
        ([of_pool("system", cpu="8"), of_pool("train", cpu="4")], 1, 2),
        ([of_pool("system", cpu="4"), of_pool("train", cpu="4")], 1, 3),
        ([of_pool("system", cpu="8")], 0, None),
        ([of_pool("", cpu="2"), of_pool("training", cpu="8")], 1, 2),
        ([node(cpu="2"), node(cpu="8")], 1, 2),
    ],
    ids=str,
)
def test_nodes_are_added_to_those_that_are_there_for_training(nodes, training, missing):
    room = capacity.count(20, Quota(cpu="1", memory="1Gi"), nodes, [])
    assert (room.training, room.missing) == (training, missing)


def daemonset(name, *arguments):
    containers = [{"name": "main"}, {"name": "aws-eks-nodeagent", "args": list(arguments)}]
    spec = {"template": {"spec": {"containers": containers}}}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("cluster_objects", "enforcer"),
    [
        ([], ""),
        ([daemonset("kube-proxy")], ""),
        ([daemonset("kube-proxy"), daemonset("calico-node")], "Calico"),
        ([daemonset("anetd")], "Google's dataplane V2"),
        ([daemonset("aws-node", "--enable-network-policy=false")], ""),
        ([daemonset("aws-node", "--enable-network-policy=true")], "Amazon VPC CNI"),
    ],
    ids=str,
)
def test_it_is_said_who_enforces_network_policies(cluster_objects, enforcer):
    assert capacity.enforcer(cluster_objects) == enforcer


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ({"hostPath": {"path": "/a"}}, {"hostPath": {"path": "/a"}}),
        ({"nfs": {"server": "s", "path": "/"}}, {"nfs": {"server": "s", "path": "/", "readOnly": True}}),
        (
            {"csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1::fsap-2"}},
            {"csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1::fsap-2", "readOnly": True}},
        ),
        (
            {
                "csi": {
                    "driver": "filestore.csi.storage.gke.io",
                    "volumeHandle": "modeInstance/z/i/vol1",
                    "volumeAttributes": {"ip": "10.0.0.2", "volume": "vol1"},
                }
            },
            {"nfs": {"server": "10.0.0.2", "path": "/vol1", "readOnly": True}},
        ),
    ],
    ids=str,
)
def test_a_shared_volume_is_read_only_in_the_words_of_its_kind(source, shared):
    assert read_only(source) == shared


@pytest.mark.parametrize(
    "source", [{"csi": {"driver": "ebs.csi.aws.com"}}, {"awsElasticBlockStore": {}}, {"iscsi": {}}], ids=str
)
def test_a_disk_of_one_node_is_not_shared(source):
    with pytest.raises(BadInput, match="one node"):
        read_only(source)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attendees": 0}, "1 to 500"),
        ({"attendees": "ada"}, "whole number"),
        ({"attendees": []}, "no attendee"),
        ({"attendees": ["Ada L."]}, "a-z"),
        ({"disks": 3}, "no disks"),
        ({"cpu": "lots"}, "above 0"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_before_a_cluster_is_sought(options, words):
    with pytest.raises(BadInput, match=words):
        kit.workshop.create(cluster="nowhere", **options)


def test_a_handout_has_a_folder_for_each_and_is_the_instructors_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    people = []
    for name in ("ada", "bob"):
        file = tmp_path / "trainyard" / "attendees" / "lab" / f"{name}.kubeconfig"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the key of {name}")
        people.append(Attendee(name, f"attendee-{name}", file, "2030-01-01T00:00:00Z"))
    for _ in range(2):
        path = write_handout("lab", people, jupyter={"ada": "\nYour JupyterLab: here\n"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with zipfile.ZipFile(path) as packed:
        assert sorted(packed.namelist()) == [
            f"{name}/{file}" for name in ("ada", "bob") for file in ("kubeconfig", "start.txt")
        ]
        assert packed.read("bob/kubeconfig") == b"the key of bob"
        page = packed.read("ada/start.txt").decode()
        assert all(words in page for words in ('"ada"', "attendee-ada", "2030-01-01", "JupyterLab: here"))
        assert packed.getinfo("ada/kubeconfig").external_attr >> 16 & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"token": ""},
        {"token": base64.b64encode(b"short").decode()},
        {"token": base64.b64encode(b"a-token-of-24-letters\n\nThen run this: rm -rf ~").decode()},
        {"token": base64.b64encode(b"\xff" * 24).decode()},
    ],
)
def test_a_secret_whose_attendee_has_spoiled_the_token_gets_another(data):
    kube = SimpleNamespace(find=lambda kind, name: {"data": data} if data is not None else {})
    assert token_of(kube) == ""
    whole = base64.b64encode(b"x_-9" * 8).decode()
    assert token_of(SimpleNamespace(find=lambda kind, name: {"data": {"token": whole}})) == "x_-9" * 8


def test_a_cluster_in_plain_mode_is_said_to_be_for_one_person(monkeypatch, caplog):
    monkeypatch.setattr(LocalCluster, "is_plain", True)
    cluster = LocalCluster("lab")
    where, why = capacity.network(cluster)
    assert (where, "for one user" in why) == ("open", True)

    def refuse(kube):
        raise Rejected("enough", about="", fix="", status=403)

    monkeypatch.setattr(LocalCluster, "kube", None)
    monkeypatch.setattr(attendees, "apply_policy", refuse)
    monkeypatch.setattr(staging, "staged", lambda on: None)
    with pytest.raises(Rejected, match="enough"):
        kit.workshop.add("ada", cluster=cluster)
    assert "for one user" in caplog.text


def machine(provider, kind, **labels):
    meta = {"name": "n", "labels": {"node.kubernetes.io/instance-type": kind} | labels}
    return {"metadata": meta, "spec": {"providerID": provider}}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([machine("trainyard://lab", "local")], "nothing beyond the existing machines"),
        ([machine("aws:///us-east-1a/i-1", "m5.large")] * 2, "about 1.17 dollars, 0.29 an hour"),
        ([machine("aws:///us-east-1a/i-1", "x9.huge")], "not known: node x9.huge"),
        (
            [
                machine(
                    "gce://p/z/n", "n1-standard-4", **{"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
                )
            ],
            "0.64 an hour",
        ),
    ],
    ids=str,
)
def test_a_workshop_has_a_price_where_its_machines_do(nodes, words):
    assert words in describe_price(nodes, hours=4)


def test_the_price_of_a_workshop_has_the_nodes_in_it_that_are_missing():
    text = describe_price([machine("", "m5.large")] * 2, hours=4, at="eks", more=1)
    assert "about 1.17 dollars, 0.29 an hour, with 1 more nodes" in text


def test_a_step_of_a_rehearsal_that_fails_says_so_and_the_others_go_on():
    rows = []
    with rehearsal._step(rows, "images", Progress("rehearsal")) as result:
        result.append("there")
        raise BadInput("no such image", about="x", fix="correct its name")
    with rehearsal._step(rows, "data", Progress("rehearsal")) as result:
        result.append("mnist")
    with rehearsal._step(rows, "room", Progress("rehearsal")) as result:
        result += ["too little", False]
    assert [row[2:] for row in rows] == [
        ("NOT READY", "no such image; try: correct its name"),
        ("ready", "mnist"),
        ("NOT READY", "too little"),
    ]
    assert not rehearsal.ready(Table(rehearsal.COLUMNS, rows))
    assert rehearsal.ready(Table(rehearsal.COLUMNS, rows[1:2]))
