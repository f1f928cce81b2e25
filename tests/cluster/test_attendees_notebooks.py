"""The course as an attendee runs it: each notebook with nothing but the kubeconfig of a namespace.

Those that need more than one namespace stop at the cell that does, and say what is missing and who has it.
With a cluster of their own, in the pod of their JupyterLab, attendees run these as well, but for 09: there
the operators of its second half listen on the same port.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
SECONDS, AT_ONCE = 900, 2
# The words with which some stop; the others run to their end.
STOPS = {
    "01": "may not see nodes",
    "09": "kubectl create role",
    "11": "may not see nodes",
    "13": "kubectl create clusterrole",
}
NOTEBOOKS = dict.fromkeys(("00", "02", "03", "04", "05", "06", "07", "08", "10", "12"), "") | STOPS

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture
def cluster(state_home):
    """A cluster with room for all of them at once, so that none waits for another's quota."""
    with kit.create_cluster("local", name="rooms", nodes=4, cpus=4, memory="16Gi") as cluster:
        yield cluster


def attend(attendee, number, folder):
    """Run a notebook as an attendee; return what was printed, and the notebook."""
    (source,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    output = folder / source.name
    environment = {"KUBECONFIG": str(attendee.kubeconfig), "XDG_STATE_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "papermill", source.name, str(output), "-p", "provider", "existing"],
        cwd=source.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done, nbformat.read(output, as_version=4)


def test_an_attendees_kubeconfig_runs_the_notebooks_or_they_say_what_it_takes(cluster, tmp_path):
    people = {number: f"runs-{number}" for number in NOTEBOOKS}
    workshop = kit.workshop.create([*people.values()], cluster=cluster, datasets=["digits"])
    restrictions = {attendee.name: attendee for attendee in workshop.attendees}

    def run(number):
        (tmp_path / number).mkdir()
        return attend(restrictions[people[number]], number, tmp_path / number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = dict(zip(NOTEBOOKS, pool.map(run, NOTEBOOKS), strict=True))
    wrong = {}
    for number, words in NOTEBOOKS.items():
        done, _ = ended[number]
        as_said = words in done.stderr if words else done.returncode == 0
        if not as_said or bool(done.returncode) != bool(words):
            wrong[number] = done.stderr[-3000:]
    assert not wrong, "\n".join(wrong.values())
    rows = {attendee["attendee"]: attendee for attendee in kit.workshop.status(cluster=cluster)}
    assert {people[name] for name, words in NOTEBOOKS.items() if words} == {
        name for name, row in rows.items() if "Rejected" in row["trouble"] or "Forbidden" in row["trouble"]
    }


def test_an_attendee_with_an_own_cluster_runs_cluster_wide_notebooks(cluster):
    lab = kit.workshop.Jupyter(own_cluster=True)
    attendee = kit.workshop.add("administrator", cluster=cluster, jupyter=lab)
    cluster.kubectl(f"rollout status deployment/jupyter -n {attendee.namespace} --timeout=180s")
    run = "papermill --log-level ERROR --no-progress-bar $each /tmp/$each"
    script = f"cd notebooks && for each in 01*.ipynb 11*.ipynb 13*.ipynb; do {run} || exit 1; done"
    cluster.kubectl(f"exec deployment/jupyter -n {attendee.namespace} -- sh -c '{script}'")
