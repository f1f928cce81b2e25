"""The course on the provider gke, unchanged: the fake Google Cloud hands out a real cluster, and it trains.

Simulated time runs by itself here, fast: what takes ten minutes at Google takes seconds.
"""

from datetime import UTC, datetime

import pytest

from .backing import Backing
from .course import SECONDS, run_course
from .google.nodes import nodes_of
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


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_the_notebooks_run_on_gke_from_the_first_to_the_last_and_leave_nothing(
    google, state_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add("ya29.instructor"))
    google.clock.begin_at(datetime.now(UTC))
    google.clock.run(SPEED)
    (files := tmp_path / "filestore").mkdir()
    with (
        Backing(google.token_webhook, nodes=NODES + 1) as behind,
        SharedFiles(behind.kubeconfig, files, driver=DRIVER, check=why_not) as driver,
    ):
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        words = ["--provider", "gke", "--cluster", NAME, "--nodes", str(NODES)]
        run_course(tmp_path, *words, *(word for each in OPTIONS for word in ("--option", each)))
        behind.settled()
    assert driver.refused == []
    assert google.left() == []
    assert list(files.iterdir()) == [], "Kubernetes gave no volume back"
