"""A folder of a GKE cluster's bucket as a volume, at a real API server; no driver is there to mount it."""

import pytest

import kitlib as kit
from kitlib.datasets.dataset import SHARED, DatasetJob
from kitlib.k8s import names
from kitlib.storage import Volume, pvc
from kitlib.storage.helper_pod import HelperPod
from kitlib.storage.persistent_volume import gcs_fuse_source
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.workshop.staging import Staged

from .google.fake import PROJECT

WANTED = {"gke-gcsfuse/volumes": "true"}


@pytest.fixture
def lab(google, local_cluster, monkeypatch):
    """A GKE cluster whose API server is a real one."""
    monkeypatch.setenv("TRAINYARD_IMAGE", "trainyard/trainer")
    cluster = GkeCluster("lab", GcpSession(PROJECT, "us-central1-c"))
    cluster.__dict__["kube"] = local_cluster.kube
    yield cluster
    for name in ("fuse-models", "fuse-again", "fuse-plain"):
        Volume(cluster, name).delete()


def test_a_folder_of_the_bucket_is_bound_and_its_pods_get_the_sidecar(lab):
    volume = lab.create_volume("fuse-models")  # which is the default
    bucket = lab.bucket.removeprefix("gs://")
    driver = volume.source["csi"]
    assert driver["volumeHandle"] == f"{bucket}:fuse-models"
    options = driver["volumeAttributes"]["mountOptions"].split(",")
    assert {"implicit-dirs", "only-dir=volumes/fuse-models", "rename-dir-limit=1000000"} <= set(options)
    (row,) = [volume for volume in lab.volumes() if volume["volume"] == "fuse-models"]
    assert (row["status"], row["class"]) == ("Bound", "gcs-fuse")
    lab.create_volume("fuse-models", storage_class="gcs-fuse")  # once more is fine

    trainer = {"name": "fuse-run", "volumes": {"/models": "fuse-models"}}
    run = kit.launch(kit.IndexedJob("trainers/digits_ddp.py", **trainer).patch(SUSPENDED), cluster=lab)
    template = lab.kube.get("Job", "fuse-run")["spec"]["template"]
    run.delete()
    assert template["metadata"]["annotations"] == WANTED
    assert claim_in(template["spec"]) == "fuse-models"
    assert HelperPod(lab, "fuse-models").manifest()["metadata"]["annotations"] == WANTED
    prepared = DatasetJob("digits", volume=volume).bind(lab)
    assert prepared.objects[-1]["spec"]["template"]["metadata"]["annotations"] == WANTED
    objects = kit.TrainJob("trainers/digits_ddp.py", **trainer).bind(lab).objects
    (patch,) = next(item for item in objects if item["kind"] == "TrainJob")["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["template"]["metadata"]["annotations"] == WANTED

    again = lab.create_volume("fuse-again", source=volume.source)  # as notebook 02 does
    assert lab.pod_annotations(["fuse-again"]) == WANTED and again.source == volume.source
    volume.delete()
    assert lab.kube.find(pvc.CLAIM, "fuse-models") is None
    assert lab.kube.find(pvc.VOLUME, f"{lab.kube.namespace}-fuse-models") is None


def test_pods_without_a_bucket_get_no_sidecar(lab):
    lab.create_volume("fuse-plain", size="1Mi", storage_class="standard")
    job = kit.IndexedJob("trainers/digits_ddp.py", name="plain", volumes={"/data": "fuse-plain"}).bind(lab)
    assert "annotations" not in job.objects[-1]["spec"]["template"]["metadata"]
    assert "annotations" not in HelperPod(lab, "fuse-plain").manifest()["metadata"]
    assert lab.pod_annotations(["nobody-knows-it"]) == {}


def test_a_bucket_that_is_shared_is_read_only_and_keeps_its_class(lab):
    where = gcs_fuse_source("trainyard-lab-1", "data")
    Staged(where, "1Gi", {}).share(lab.kube, labels=names.labels(volume=SHARED))
    bound = lab.kube.get(pvc.VOLUME, f"{lab.kube.namespace}-{SHARED}")
    assert bound["spec"]["csi"]["readOnly"] and bound["spec"]["storageClassName"] == "gcs-fuse"
    assert lab.pod_annotations([SHARED]) == WANTED


SUSPENDED = {"spec": {"suspend": True}}


def claim_in(pod):
    return next(
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    )
