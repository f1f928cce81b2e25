"""Each cause of `causes/waits.yaml`, made to happen on a real cluster, and named by ``run.why()``.

All rows run at the same time, each in a namespace of its own. Each is asked for by an administrator, and by
somebody with the role ``edit`` in that namespace alone, as on a cluster of the provider ``existing``.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

import kitlib as kit
from kitlib.errors import WaitTimeout
from kitlib.k8s.client import Kube
from kitlib.runs.status import runs_table

from ..patience import until
from ..rows import slow
from .provoked import ROWS, check, first_cause, provoke

# Somebody who may read neither nodes nor PersistentVolumes cannot know what these say.
NEEDS_THE_CLUSTER = {"access-mode", "volume-taken", "volume-size"}


@pytest.fixture(scope="module")
def cluster(state_home, registries):
    """A cluster in which every row has been made to happen."""
    with kit.create_cluster("local", name="waits", nodes=2, warm=False) as waits_cluster:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda row: provoke(waits_cluster.kube, row, registries), ROWS))
        yield waits_cluster


@pytest.fixture(scope="module")
def learner(cluster, tmp_path_factory):
    """A kubeconfig of somebody who has the role edit in the namespaces of the rows, and no other right."""
    cluster.kubectl("create serviceaccount learner")
    config = yaml.safe_load(cluster.kube.kubeconfig.read_text())
    token = str(cluster.kubectl("create token learner --duration=2h")).strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = tmp_path_factory.mktemp("learner") / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_cause_is_named(cluster, row):
    check(first_cause(cluster.kube, row), row)


@pytest.mark.parametrize(
    "row",
    [*ROWS[::12], *slow(*(row for number, row in enumerate(ROWS) if number % 12))],
    ids=lambda row: row["name"],
)
def test_the_cause_is_named_to_somebody_with_the_rights_of_one_namespace(cluster, learner, row):
    if row["name"] in NEEDS_THE_CLUSTER:
        pytest.skip("only who may read the cluster's own objects can know it")
    check(first_cause(Kube(learner, cluster=cluster.name), row), row)


def test_status_pods_and_the_list_of_runs_say_what_events_say(cluster):
    def shown(row):
        return kit.Run(cluster.kube.in_namespace(f"w-{row}"), f"w-{row}")

    missing = 'Secret "token" does not exist'
    until(lambda: missing in str(shown("secret-volume").status))
    assert missing in str(shown("secret-volume").pods())
    until(lambda: "ResourceQuota room" in str(shown("quota-pods").status))
    table = runs_table(cluster.kube.in_namespace("w-secret-volume"))
    assert missing in str(table)


def test_a_run_that_waits_names_the_cause_in_the_error_of_a_wait(cluster):
    run = kit.Run(cluster.kube.in_namespace("w-init-hangs"), "w-init-hangs")
    with pytest.raises(WaitTimeout, match="waits for its init container setup"):
        run.wait(timeout=15)


def test_an_undisturbed_run_has_no_cause_at_any_time(local_cluster, write_trainer):
    program = "import time, torch.distributed as dist\ndist.init_process_group('gloo')\ntime.sleep(3)\n"
    job = kit.IndexedJob(write_trainer(f"{program}dist.destroy_process_group()\n"), nodes=2)
    run = kit.launch(job, cluster=local_cluster)
    diagnoses = []

    def ended():
        diagnoses.append(run.why())
        return run.status.finished

    until(ended)
    # On a machine whose processors are all taken a kubelet really is late, and that is said.
    late = ("has not started it for", "has been starting on node")
    assert [why for why in diagnoses if why and not any(words in str(why) for words in late)] == []
    assert run.status.phase == "Succeeded"
    run.delete()
