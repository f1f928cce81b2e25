"""``trainyard workshop rehearse``, from the command line to the times that it keeps, with one notebook."""

import json
import re
import sys

import pytest

from trainyard_kit.workshop import notebook_rehearsal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_a_rehearsal_prints_seconds_beside_the_last_ones_and_keeps_them(finish, state_home, tmp_path):
    earlier = {"seconds": {"00_start": 7.0, notebook_rehearsal.AROUND: 9.0}}
    (tmp_path / notebook_rehearsal.KEPT).write_text(json.dumps(earlier))
    command = [
        sys.executable,
        "-m",
        "trainyard_kit.cli",
        "workshop",
        "rehearse",
        "00",
        "--folder",
        str(tmp_path),
    ]
    done = finish([*command, "--nodes", "1"], timeout=400)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^00_start +\d+ +7 +passed$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^together +\d+ +16 +passed$", done.stdout, re.MULTILINE), done.stdout
    stored = json.loads((tmp_path / notebook_rehearsal.KEPT).read_text())
    assert stored["place"]["cores"] >= 1
    assert set(stored["seconds"]) == {"00_start", notebook_rehearsal.AROUND}
    assert (tmp_path / "index.html").exists()
