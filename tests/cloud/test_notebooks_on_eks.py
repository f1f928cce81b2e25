"""The course on the provider eks, unchanged: the fake Amazon hands out a real cluster, and it really trains.

Simulated time runs by itself here, fast: what takes ten minutes at Amazon takes seconds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .aws.machines import files_of, nodes_of
from .backing import Backing

ROOT = Path(__file__).resolve().parents[2]
NAME, REGION, NODES, SPEED = "course", "us-west-2", 4, 60
SECONDS = 3600


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_notebooks_run_on_eks_from_the_first_to_the_last_and_leave_nothing(amazon, state_home, tmp_path):
    chosen = os.environ.get("TRAINYARD_CLOUD_NOTEBOOKS", "").split()
    amazon.clock.run(SPEED)
    with (
        Backing(amazon.token_webhook(NAME), nodes=NODES + 1) as behind,
        files_of(amazon, behind, region=REGION) as files,
    ):
        amazon.backing(NAME, endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
        command = [sys.executable, "tools/run_notebooks.py", *chosen, "--provider", "eks", "--cluster", NAME]
        # Time runs so fast that a cluster of four hours would not see its second notebook: AWS deletes it.
        options = (f"region={REGION}", "hours=300", "confirm=true")
        command += ["--nodes", str(NODES), *(word for each in options for word in ("--option", each))]
        done = subprocess.run([*command, "--output", str(tmp_path)], cwd=ROOT, timeout=SECONDS, check=False)
        behind.settled()
        assert files.refused == []
    result = json.loads((tmp_path / "result.json").read_text())
    told = {each["name"]: each["verdict"] for each in result["notebooks"]}
    assert set(told.values()) == {"passed"}, told
    assert done.returncode == 0
    assert amazon.left() == []
