"""The walk-through on Indexed Jobs at the simulated Google Cloud, with a bucket.

The trainer comes from it, to machines with a GPU each, and the model goes there.
"""

import io
from pathlib import Path

import pytest
import torch
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

import kitlib as kit
from kitlib.clusters.shape import Shape
from trainyard_kit.clouds.gke.cluster import GkeCluster

from .backing_cluster import BackingCluster, way_out
from .gke_lifecycle import OPTIONS
from .google.nodes import nodes_of
from .shared_files import SharedFiles

TRAINER = Path(__file__).parent / "digits_to_bucket.py"
DRIVER, NODES = "filestore.csi.storage.gke.io", 2


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_gpu_machines_take_their_trainer_from_the_bucket_and_leave_the_model_there(
    google, state_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRAINYARD_IMAGE", "trainyard/trainer")
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add("ya29.owner"))
    emulator = google.also_at(way_out())
    with (
        BackingCluster(google.token_webhook, nodes=NODES + 1, options=("--gpus", "1")) as behind,
        SharedFiles(behind.kubeconfig, tmp_path, driver=DRIVER, check=lambda parameters: ""),
    ):
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        lab = GkeCluster.create("lab", Shape(NODES, options=OPTIONS))
        behind.settled()
        lab.wait_ready(timeout=120)
        place = lab.bucket.removeprefix("gs://")
        bucket = storage.Client(
            project="none", credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator}
        ).bucket(place)
        bucket.blob("code/digits.py").upload_from_string(TRAINER.read_text())

        # A pod of GKE is known to Google by its identity, and finds the storage by itself.
        lab.kubectl(f"create secret generic storage --from-literal=STORAGE_EMULATOR_HOST={emulator}")
        job = kit.IndexedJob(
            f"{lab.bucket}/code/digits.py",
            name="digits",
            nodes=NODES,
            gpus=1,
            args=[place, "models/digits.pt"],
            volumes={"/data": lab.create_volume("shared", storage_class="filestore")},
            source_secret="storage",
        )
        known = {"name": "pytorch", "env": [{"name": "STORAGE_EMULATOR_HOST", "value": emulator}]}
        job = job.patch({"spec": {"template": {"spec": {"containers": [known]}}}})
        (run := kit.launch(job, cluster=lab)).wait(timeout=240)
        assert set(run.metrics("end").world_size) == {NODES}

        from sklearn.datasets import load_digits

        weights = torch.load(io.BytesIO(bucket.blob("models/digits.pt").download_as_bytes()))
        digits = load_digits()
        logits = torch.tensor(digits.data, dtype=torch.float32) / 16 @ weights["weight"].T + weights["bias"]
        assert (logits.argmax(1) == torch.tensor(digits.target)).float().mean() > 0.8
        lab.delete()
        assert google.left() == []
        assert list(tmp_path.iterdir()) == [], "completed pods have held the volume"
