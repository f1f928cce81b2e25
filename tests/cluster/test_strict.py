"""Strict namespaces, as of companies and labs: restrictions alone and in pairs, for a user with no other.

On nodes with Kubernetes' own kubelet and containerd, whose pods see none of this machine's files (as root):

    .venv/bin/python -m tests.kubelet --command ".venv/bin/python -m pytest tests/cluster/test_strict.py"
"""

import logging
import os

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib import config
from kitlib.clusters.existing import ExistingCluster
from kitlib.errors import BadInput, LaunchRejected, Rejected, WaitTimeout
from kitlib.k8s import manifests
from kitlib.k8s.api_errors import admission_hint
from kitlib.k8s.wait import wait
from trainyard_kit.cli.main import main

from ..rows import slow
from .strict import StrictNamespace

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def admin_cluster(request, state_home):
    """The cluster of ``tests.kubelet`` within its command, or else the local one that is shared."""
    if "TRAINYARD_REAL_KUBELET" in os.environ:
        return ExistingCluster("real-kubelet")
    return request.getfixturevalue("local_cluster")


@pytest.fixture
def strict(admin_cluster, tmp_path):
    """Return a function that makes a namespace with the restrictions of some rows."""
    namespaces = []

    def make(*rows, through=False, **more):
        folder = tmp_path / str(len(namespaces))
        folder.mkdir()
        namespaces.append(StrictNamespace(admin_cluster, folder, rows, **more))
        if through and "default-deny" in rows:  # as the preflight says
            namespaces[-1].apply(config.manifests("network-policy", "allow-training.yaml"))
        return namespaces[-1]

    yield make
    for namespace in namespaces:
        namespace.delete()


def meet():
    import getpass
    import os
    from pathlib import Path

    import torch.distributed

    torch.distributed.init_process_group("gloo")
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, os.getuid())
    Path("beside.txt").write_text(getpass.getuser())
    Path("~/cached").expanduser().touch()
    print("users", ranks)
    torch.distributed.destroy_process_group()  # else a thread of gloo's may abort a rank at its exit


PAIRS = [("restricted", "quota")]
MORE = [
    ("baseline", "ratio"),
    ("restricted",),
    ("quota",),
    ("restricted", "most"),
    ("quota", "default-deny"),
    ("restricted", "defaults"),
    ("restricted", "default-deny"),
    ("defaults", "quota"),
]


@pytest.mark.parametrize("rows", [*PAIRS, *slow(*((rows,) for rows in MORE))], ids=str)
def test_a_volume_and_a_job_with_limits_work_in_strict_namespaces(strict, rows, tmp_path):
    cluster = strict(*rows, through=True).cluster
    assert kit.preflight(cluster).ok
    volume = cluster.create_volume("shared")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "note.txt").write_text("hello")
    volume.upload(tmp_path / "data", to="data")
    assert volume.ls()
    job = kit.IndexedJob(meet, nodes=2, memory="1Gi", cpu=0.5, volumes={"/data": volume}, workspace=volume)
    run = kit.launch(job, cluster=cluster)
    run.wait()
    assert "users [65532, 65532]" in str(run.logs())
    assert volume.read(f"runs/{run.name}/beside.txt") == b"trainyard"


def test_pods_of_a_user_whom_no_image_knows_train_in_a_strict_namespace(strict):
    user = 1_000_650_000 if "TRAINYARD_REAL_KUBELET" in os.environ else 64_000  # local pods have 65,536 ids
    job = kit.IndexedJob(meet, nodes=2, memory="1Gi", cpu=0.5, run_as_user=user)
    run = kit.launch(job, cluster=strict("restricted", "quota").cluster)
    run.wait()
    assert f"users [{user}, {user}]" in str(run.logs())


READ_ONLY = {"securityContext": {"readOnlyRootFilesystem": True}, "name": "pytorch"}
WRITABLE = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108: of the pod


@pytest.mark.parametrize(
    ("row", "setting", "fix"),
    [
        ("labelled", {"TRAINYARD_LABELS": "team=vision cost-center=42"}, "TRAINYARD_LABELS"),
        *slow(("limited", {}, "`cpu=` and `memory=`")),
        ("read-only", {}, "job.patch("),
    ],
)
def test_a_job_meets_a_clusters_rules_by_what_the_refusal_names(
    strict, row, setting, fix, tmp_path, monkeypatch
):
    cluster = strict(row).cluster
    with pytest.raises(LaunchRejected) as refused:
        kit.launch(kit.IndexedJob(meet, nodes=2), cluster=cluster)
    assert fix in refused.value.fix
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert results(cluster)["pod security"].level == "ok"
    (tmp_path / "note.txt").write_text("hello")
    volume = cluster.create_volume("shared")
    volume.upload(tmp_path / "note.txt")
    job = kit.IndexedJob(meet, nodes=2, memory="1Gi", cpu=0.5, workspace=volume)
    if row == "read-only":
        container = READ_ONLY | {"volumeMounts": [WRITABLE]}
        volumes = [{"name": "tmp", "emptyDir": {}}]
        job = job.patch({"spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}})
    run = kit.launch(job, cluster=cluster)
    run.wait()
    assert "users [65532, 65532]" in str(run.logs())


def parameter_server(cluster, **job):
    data = kit.prepare_dataset("mnist", volume=cluster.create_volume("shared"), records=True)
    return kit.ParameterServer("trainers/mnist_parameter_server.py", data=data, workers=2, servers=1, **job)


KINDS = {
    "TorchElastic": (
        "",
        "users [64000, 64000]",
        lambda cluster, **job: kit.TorchElastic(meet, nodes=2, **job),
    ),
    "PyTorchJob": (
        "training-operator",
        "users [64000, 64000]",
        lambda cluster, **job: kit.PyTorchJob(meet, nodes=2, **job),
    ),
    "TrainJob": (
        "trainer",
        "users [64000, 64000]",
        lambda cluster, **job: kit.TrainJob(meet, nodes=2, **job),
    ),
    "ParameterServer": ("", '"event":"end"', parameter_server),
}
STRICTER = ("least", "quota", "most", "defaults", "range", "quota range", "quota default-deny")


@pytest.mark.slow  # unit/test_kit_pod_security.py looks at the pods of each kind
@pytest.mark.parametrize("row", ["ratio", *STRICTER])
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_jobs_and_the_pods_beside_their_ranks_are_admitted(
    strict, admin_cluster, kind, row, monkeypatch
):
    monkeypatch.setenv("TRAINYARD_RUN_AS_USER", "64000")
    operator, line, make = KINDS[kind]
    if operator:
        kit.install(operator, cluster=admin_cluster)
    if kind == "ParameterServer" and "TRAINYARD_REAL_KUBELET" in os.environ:
        monkeypatch.setenv("TRAINYARD_IMAGE", "trainyard/trainer")  # PyTorch's own has no grpc
    cluster = strict("restricted", *row.split(), through=True).cluster
    run = kit.launch(make(cluster, cpu=0.5, memory="1Gi"), cluster=cluster)
    run.wait()
    assert line in str(run.logs())


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "of-one"},
    "spec": {"resources": {"requests": {"storage": "1Gi"}}},
}
TOGETHER = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}


@pytest.mark.parametrize(
    ("mode", "name"),
    [("ReadWriteOnce", "gp3"), ("ReadWriteOncePod", "efs"), *slow(("ReadWriteOnce", "local-path"))],
)
def test_a_volume_of_one_node_is_refused_for_pods_on_several(strict, mode, name):
    namespace = strict("restricted")
    namespace.kube.create(manifests.merge(CLAIM, {"spec": {"accessModes": [mode], "storageClassName": name}}))
    job = kit.IndexedJob(meet, nodes=2, volumes={"/data": "of-one"})
    with pytest.raises(BadInput, match=rf'"of-one" is for .* at a time: {mode}.*"{name}"'):
        kit.launch(job, cluster=namespace.cluster)
    alone = kit.launch(kit.IndexedJob(meet, nodes=1, volumes={"/data": "of-one"}), cluster=namespace.cluster)
    alone.delete()
    if mode == "ReadWriteOnce":
        job = job.patch({"spec": {"template": {"spec": TOGETHER}}})
        kit.launch(job, cluster=namespace.cluster).delete()


def test_modules_that_pytorchs_own_image_lacks_are_named_at_the_launch(strict, tmp_path, caplog):
    program = tmp_path / "train.py"
    program.write_text("import grpc, numpy, json\ntry:\n    import boto3\nexcept ImportError:\n    pass\n")
    caplog.set_level(logging.WARNING)
    kit.launch(kit.IndexedJob(program, nodes=1), cluster=strict().cluster).delete()
    (record,) = (record for record in caplog.records if "has no" in record.getMessage())
    assert "has no grpc; kit.build_image(" in record.getMessage()


NO_ROOM = "a larger quota: this one never has the room"
BIG = {"nodes": 2, "cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (("restricted",), {"run_as_user": 0}, r"(?s)violates PodSecurity.*run_as_user=0.*image "),
        (("quota",), {}, r"(?s)limits.memory.*memory="),
        (("restricted", "no services"), BIG, NO_ROOM),
        (("scoped",), BIG, NO_ROOM),
        (("quota", "small pods"), BIG, 'cpu=0.5 is the most, memory="512Mi" is the most that'),
    ],
)
def test_a_job_that_a_namespace_never_admits_is_refused_with_the_argument(strict, rows, options, words):
    cluster = strict(*rows).cluster
    with pytest.raises(LaunchRejected, match=words):
        kit.launch(meet, cluster=cluster, **{"nodes": 1} | options)
    assert not len(cluster.runs())


@pytest.mark.parametrize(
    ("row", "limits"), [("small volumes", "max storage 2Gi of a volume"), ("little storage", "none")]
)
def test_a_volume_that_is_too_large_for_the_namespace_is_refused_with_its_size(strict, row, limits):
    cluster = strict("restricted", row).cluster
    with pytest.raises(Rejected, match='size="2Gi" is the most'):
        cluster.create_volume("shared")
    checks = results(cluster)
    assert limits in checks["limit range"].message
    assert 'size="2Gi"' in checks["storage"].fix
    assert cluster.create_volume("shared", size="2Gi")


def test_a_mirror_its_secret_and_a_taint_are_three_settings_for_all_pods(strict, monkeypatch):
    namespace = strict("restricted", "mirrored")
    settings = {
        "REGISTRY": "mirror.example/hub",
        "PULL_SECRET": "pull",
        "TOLERATIONS": "dedicated=lab:NoSchedule",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"TRAINYARD_{name}", value)
    assert results(namespace.cluster)["image"].message == 'there is no Secret "pull" (TRAINYARD_PULL_SECRET)'
    login = "--docker-server=mirror.example --docker-username=a --docker-password=b"
    namespace.cluster.kubectl(f"create secret docker-registry pull {login}")
    assert results(namespace.cluster)["pod security"].level == "ok"
    run = kit.launch(kit.IndexedJob(meet, nodes=2), cluster=namespace.cluster)
    spec = namespace.kube.get("Job", run.name)["spec"]["template"]["spec"]
    run.delete()
    assert spec["containers"][0]["image"].startswith("mirror.example/hub/pytorch/pytorch:")
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert "dedicated" in [item["key"] for item in spec["tolerations"]]


def test_a_user_who_may_not_list_events_trains_and_uses_volumes(strict):
    cluster = strict("restricted", cannot=("events",)).cluster
    volume = cluster.create_volume("shared")
    run = kit.launch(kit.IndexedJob(meet, nodes=2, cpu=0.5, volumes={"/data": volume}), cluster=cluster)
    run.wait()
    assert run.status.phase == "Succeeded" and "nothing is wrong" in str(run.why())
    assert str(volume.ls()) and len(cluster.runs()) == 1
    with pytest.raises(Rejected, match="podmetrics|pods.metrics.k8s.io|cannot list"):
        cluster.top("pods")
    run.delete()


def test_a_volume_whose_pod_does_not_start_says_why_and_what_to_do(
    strict, admin_cluster, monkeypatch, caplog
):
    monkeypatch.setattr("kitlib.storage.helper_pod.LOOK_SECONDS", 2.0)
    monkeypatch.setitem(wait.__kwdefaults__, "standstill", 8.0)
    late = {"provisioner": "rancher.io/local-path", "volumeBindingMode": "WaitForFirstConsumer"}
    meta = {"metadata": {"name": "nobodys"}}
    admin_cluster.kube.create({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"} | meta | late)
    try:
        cluster = strict("restricted").cluster
        volume = cluster.create_volume("one", storage_class="nobodys", access_mode="ReadWriteOnce")
        with pytest.raises(WaitTimeout, match="provisioner rancher.io/local-path has made no volume") as late:
            volume.ls()
    finally:
        admin_cluster.kube.delete("StorageClass", "nobodys")
    assert "driver rancher.io/local-path" in late.value.fix
    assert "has made no volume" in caplog.text


def test_a_range_of_users_is_answered_by_the_argument():
    words = "denied request: runAsUser: Invalid value: 65532: must be in the ranges: [1000680000, 1000689999]"
    assert admission_hint(words).startswith("`run_as_user=1000680000` ")
    assert admission_hint('violates PodSecurity "restricted:latest": runAsUser=0 (must not be root)') == ""


def results(cluster):
    return {check.name: check for check in kit.preflight(cluster).checks}


def test_preflight_names_what_a_namespace_forbids_with_rights_in_it_alone(strict):
    checks = results(strict("restricted", "quota", "most", "default-deny").cluster)
    assert (checks["permissions"].level, checks["pod security"].level) == ("ok", "ok")
    assert "restricted: pods run as user 65532" in checks["pod security"].message
    assert "`cpu=` and `memory=`" in checks["quota team"].fix
    assert "max cpu 2, memory 2Gi" in checks["limit range"].message
    room = results(strict("no services").cluster)["quota team"]
    assert (room.level, "count/services" in room.message) == ("failed", True)
    policy = checks["network policy"]
    assert (policy.level, "DNS" in policy.message) == ("failed", True)
    assert "allow-training.yaml" in policy.fix
    assert checks["nodes"].message.startswith("not checked"), (
        "they are the cluster's, and not the namespace's"
    )


def test_preflight_passes_a_namespace_without_restrictions(strict):
    namespace = strict()
    namespace.apply(config.manifests("network-policy", "allow-training.yaml"))
    report = kit.preflight(namespace.cluster)
    assert report.ok, report
    (image,) = (check for check in report.checks if check.name == "image")
    assert (image.level, "not published" in image.message, "build_image" in image.fix) == ("warn", True, True)


def test_preflight_fails_for_a_class_of_storage_that_there_is_not(admin_cluster, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STORAGE_CLASS", "missing")
    row = results(admin_cluster)["storage"]
    assert (row.level, row.message) == ("failed", "there is no StorageClass missing")
    assert any(item["metadata"]["name"] in row.fix for item in admin_cluster.kube.get_all("StorageClass"))


def test_preflight_names_the_right_that_is_lacking(strict):
    namespace = strict(cannot=("configmaps", "pods/exec", "pods/portforward"))
    checks = results(namespace.cluster)
    assert checks["permissions"].level == "failed"
    assert "create, get, delete configmaps" in checks["permissions"].message
    assert "ClusterRole edit" in checks["permissions"].fix
    assert "volumes does not work" in checks["permission: pods/exec"].fix
    assert "port_forward does not work" in checks["permission: pods/portforward"].fix


def test_the_command_line_needs_rights_in_one_namespace_alone(strict, monkeypatch):
    namespace = strict("restricted", "quota")
    monkeypatch.setenv("KUBECONFIG", str(namespace.cluster._source))
    name = f"team-{namespace.name}"
    for words in ("create --provider existing", "status", "delete"):
        command, *options = words.split()
        done = CliRunner().invoke(main, ["cluster", command, name, *options])
        assert done.exit_code == 0, done.output
        assert command == "delete" or namespace.name in done.output


def test_a_policy_that_denies_all_is_named_by_the_command_and_before_the_ranks_wait(strict, caplog):
    namespace = strict("default-deny")
    namespace.cluster.remembered()
    done = CliRunner().invoke(main, ["doctor", "--cluster", namespace.name])
    assert (done.exit_code, "allow-training.yaml" in done.output) == (1, True), done.output
    kit.launch(meet, cluster=namespace.cluster, nodes=2).delete()
    (record,) = (record for record in caplog.records if "default-deny" in record.getMessage())
    assert "allow-training.yaml" in record.getMessage()
