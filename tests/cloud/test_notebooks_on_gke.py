"""The course on the provider gke, unchanged: the fake Google Cloud hands out a real cluster, and it trains.

Simulated time runs by itself here, fast: what takes ten minutes at Google takes seconds. A stand-in
of BuildKit makes the trainer image before the first notebook.
"""

from contextlib import contextmanager

import pytest

from ..programs.container_registry import PASSWORD
from .backing_cluster import BackingCluster, way_out
from .google.nodes import nodes_of
from .notebook_runs import SECONDS, printed, run_course, stand_in_for_buildkit
from .shared_files import SharedFiles

NAME, NODES, SPEED = "course", 4, 60
DRIVER = "filestore.csi.storage.gke.io"
# Time runs so fast that a cluster of four hours would not see its second notebook: Google deletes it.
OPTIONS = ("zone=us-central1-c", "hours=300", "confirm=true")


def why_not(parameters):
    """Return why Filestore's driver would make no volume of a class; its labels are how it is found again."""
    options = {"tier": "standard", "network": f"trainyard-{NAME}"}
    wrong = [key for key, value in options.items() if parameters.get(key) != value]
    wrong += [] if "trainyard-kit=true" in parameters.get("labels", "") else ["labels"]
    return f"the class's {', '.join(wrong)}" if wrong else ""


@pytest.fixture
def google_that_builds(google, state_home, tmp_path_factory, monkeypatch):
    """Return the fake, with nodes that have a stand-in of BuildKit."""
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add(PASSWORD))
    stand_in_for_buildkit(tmp_path_factory.mktemp("images"))
    return google


@contextmanager
def real_cluster(google, files, *, gpus):
    """Have a real cluster behind the one that is made, whose machines declare GPUs."""
    with (
        BackingCluster(google.token_webhook, nodes=NODES + 1, options=("--gpus", str(gpus))) as behind,
        SharedFiles(behind.kubeconfig, files, driver=DRIVER, check=why_not) as driver,
    ):
        emulator = f"--from-literal=STORAGE_EMULATOR_HOST={google.also_at(way_out())}"
        behind.kubectl("create", "secret", "generic", "imagenet", emulator)
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        yield
        behind.settled()
    assert driver.refused == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(("gpus", "machines"), [(0, ()), (1, ("accelerator=nvidia-tesla-t4",))])
def test_the_notebooks_run_on_gke_from_the_first_to_the_last_and_leave_nothing(
    gpus, machines, google_that_builds, state_home, tmp_path, monkeypatch
):
    # No bucket is mounted where nodes are simulated.
    monkeypatch.setenv("TRAINYARD_STORAGE_CLASS", "filestore")
    google = google_that_builds
    google.clock.run(SPEED)
    (files := tmp_path / "filestore").mkdir()
    words = ["--provider", "gke", "--cluster", NAME, "--nodes", str(NODES)]
    words += [word for option in OPTIONS + machines for word in ("--option", option)]
    run_course(tmp_path, real_cluster(google, files, gpus=gpus), *words)
    assert google.left() == []
    assert list(files.iterdir()) == [], "Kubernetes gave no volume back"
    if list(tmp_path.glob("03_*.ipynb")):
        assert "sha256:" in printed(tmp_path, "03", "image = kit.build_image(")
