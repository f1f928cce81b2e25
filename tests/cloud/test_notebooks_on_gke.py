"""The course on the provider gke, unchanged: the fake Google Cloud hands out a real cluster, and it trains.

Simulated time runs by itself here, fast: what takes ten minutes at Google takes seconds.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .backing import Backing
from .google.nodes import nodes_of
from .shared_files import SharedFiles

ROOT = Path(__file__).resolve().parents[2]
NAME, NODES, SPEED = "course", 4, 60
DRIVER = "filestore.csi.storage.gke.io"
SECONDS = 3600


def why_not(parameters):
    """Return why Filestore's driver would make no volume of a class; its labels are how it is found again."""
    wanted = {"tier": "standard", "network": f"trainyard-{NAME}"}
    wrong = [key for key, value in wanted.items() if parameters.get(key) != value]
    wrong += [] if "trainyard-kit=true" in parameters.get("labels", "") else ["labels"]
    return f"the class's {', '.join(wrong)}" if wrong else ""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_notebooks_run_on_gke_from_the_first_to_the_last_and_leave_nothing(
    google, state_home, tmp_path, monkeypatch
):
    chosen = os.environ.get("TRAINYARD_CLOUD_NOTEBOOKS", "").split()
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add("ya29.instructor"))
    google.clock.begin_at(datetime.now(UTC))
    google.clock.run(SPEED)
    (files := tmp_path / "filestore").mkdir()
    with Backing(google.token_webhook, nodes=NODES + 1) as behind:
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        command = [sys.executable, "tools/run_notebooks.py", *chosen, "--provider", "gke", "--cluster", NAME]
        # Time runs so fast that a cluster of four hours would not see its second notebook: Google deletes it.
        options = ("zone=us-central1-c", "hours=300", "confirm=true")
        command += ["--nodes", str(NODES), *(word for each in options for word in ("--option", each))]
        with SharedFiles(behind.kubeconfig, files, driver=DRIVER, check=why_not) as driver:
            done = subprocess.run(
                [*command, "--output", str(tmp_path)], cwd=ROOT, timeout=SECONDS, check=False
            )
        behind.settled()
    result = json.loads((tmp_path / "result.json").read_text())
    told = {each["name"]: each["verdict"] for each in result["notebooks"]}
    assert set(told.values()) == {"passed"}, told
    assert done.returncode == 0
    assert driver.refused == []
    assert google.left() == []
