"""The course on the provider gke, unchanged: the fake Google Cloud hands out a real cluster, and it trains.

Simulated time runs by itself here, fast: what takes ten minutes at Google takes seconds. With an engine and
a registry on this machine, the image of notebook 03 is pushed to that; without, Cloud Build makes it.
"""

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from ..unit.container_registry import PASSWORD
from .backing_cluster import BackingCluster
from .google.nodes import nodes_of
from .notebook_runs import SECONDS, registry_or_none, run_course, said
from .shared_files import SharedFiles

NAME, NODES, SPEED = "course", 4, 60
DRIVER = "filestore.csi.storage.gke.io"
# Time runs so fast that a cluster of four hours would not see its second notebook: Google deletes it.
OPTIONS = ("zone=us-central1-c", "hours=300", "confirm=true")


def why_not(parameters):
    """Return why Filestore's driver would make no volume of a class; its labels are how it is found again."""
    wanted = {"tier": "standard", "network": f"trainyard-{NAME}"}
    wrong = [key for key, value in wanted.items() if parameters.get(key) != value]
    wrong += [] if "trainyard-kit=true" in parameters.get("labels", "") else ["labels"]
    return f"the class's {', '.join(wrong)}" if wrong else ""


@pytest.fixture
def google_with_images(google, tmp_path_factory, monkeypatch):
    """Return the fake, whose Artifact Registry is a real registry where something can be pushed to it."""
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add(PASSWORD))
    with registry_or_none(tmp_path_factory.mktemp("images"), monkeypatch) as address:
        google.registry(address, f"oauth2accesstoken:{PASSWORD}")
        yield google


@contextmanager
def real_cluster(google, files):
    """Have a real cluster behind the one that is made."""
    with (
        BackingCluster(google.token_webhook, nodes=NODES + 1) as behind,
        SharedFiles(behind.kubeconfig, files, driver=DRIVER, check=why_not) as driver,
    ):
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        yield
        behind.settled()
    assert driver.refused == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
def test_the_notebooks_run_on_gke_from_the_first_to_the_last_and_leave_nothing(
    google_with_images, state_home, tmp_path
):
    google = google_with_images
    google.clock.begin_at(datetime.now(UTC))
    google.clock.run(SPEED)
    (files := tmp_path / "filestore").mkdir()
    words = ["--provider", "gke", "--cluster", NAME, "--nodes", str(NODES)]
    words += [word for each in OPTIONS for word in ("--option", each)]
    run_course(tmp_path, real_cluster(google, files), *words)
    assert google.left() == []
    assert list(files.iterdir()) == [], "Kubernetes gave no volume back"
    if list(tmp_path.glob("03_*.ipynb")):
        assert "sha256:" in said(tmp_path, "03", "image = kit.build_image(")
