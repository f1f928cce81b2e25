"""The fake's schedules call the container API in time, as an account that may do it or may not."""

import json
import subprocess
import sys
from datetime import datetime
from urllib.request import Request, urlopen

import pytest
from google.cloud.container_v1 import types
from googleapiclient.errors import HttpError

from .google import cron
from .google.clients import Clients
from .google.clock import BEGIN
from .google.fake import PROJECT, FakeGoogle

ROOT = f"projects/{PROJECT}"
PLACE = f"{ROOT}/locations/us-central1-c"
ACCOUNT = f"janitor@{PROJECT}.iam.gserviceaccount.com"
JOBS = f"{ROOT}/locations/us-central1"
LAST = "2026-11-23T00:00:00Z"
UNTIL = f'request.time < timestamp("{LAST}") && resource.name.endsWith("/clusters/lab")'


@pytest.fixture
def google():
    with FakeGoogle() as fake:
        yield fake


@pytest.fixture
def clients(google):
    opened = Clients(google.endpoints)
    yield opened
    opened.close()


def job(schedule, name="end"):
    return {
        "name": f"{JOBS}/jobs/{name}",
        "schedule": schedule,
        "retryConfig": {"retryCount": 2, "minBackoffDuration": "300s"},
        "httpTarget": {
            "uri": f"https://container.googleapis.com/v1/{PLACE}/clusters/lab",
            "httpMethod": "DELETE",
            "oauthToken": {"serviceAccountEmail": ACCOUNT},
        },
    }


def make_janitor(clients, **binding):
    accounts = clients.rest("iam").projects().serviceAccounts()
    accounts.create(name=ROOT, body={"accountId": "janitor"}).execute()
    policy = {"version": 3, "bindings": []}
    if binding:
        policy["bindings"] = [{"role": "roles/container.clusterAdmin", **binding}]
    projects = clients.rest("cloudresourcemanager", "v3").projects()
    projects.setIamPolicy(resource=ROOT, body={"policy": policy}).execute()


def make_lab(google, clients):
    clients.container.create_cluster(parent=PLACE, cluster=types.Cluster(name="lab", initial_node_count=1))
    google.clock.advance(300)


def test_a_schedule_deletes_a_cluster_as_soon_as_nothing_else_is_done_to_it(google, clients):
    make_janitor(
        clients, members=[f"serviceAccount:{ACCOUNT}"], condition={"title": "end", "expression": UNTIL}
    )
    make_lab(google, clients)
    jobs = clients.rest("cloudscheduler").projects().locations().jobs()
    jobs.create(parent=JOBS, body=job("30 9 22 11 *")).execute()
    google.clock.advance(24 * 60)
    pool = f"{PLACE}/clusters/lab/nodePools/default-pool"
    clients.container.set_node_pool_size({"name": pool, "node_count": 2})
    google.clock.advance(3600)
    assert [(each.at.strftime("%H:%M"), each.status) for each in google.scheduler.fired] == [
        ("09:30", "FAILED_PRECONDITION"),
        ("09:35", "OK"),
    ]
    assert not [each for each in google.left() if "clusters/lab" in each or "gke-lab" in each]
    seen = jobs.get(name=f"{JOBS}/jobs/end").execute()
    assert seen["scheduleTime"].startswith("2027-11-22T09:30")
    assert seen["status"]["code"] == 0
    assert [each.by for each in google.calls if each.method == "container.DeleteCluster"] == [ACCOUNT] * 2


@pytest.mark.parametrize(
    ("binding", "status"),
    [
        ({}, "PERMISSION_DENIED"),
        (
            {
                "members": [f"serviceAccount:{ACCOUNT}"],
                "condition": {"title": "other", "expression": UNTIL.replace("/lab", "/other")},
            },
            "PERMISSION_DENIED",
        ),
    ],
)
def test_a_schedule_without_the_right_deletes_nothing(google, clients, binding, status):
    make_janitor(clients, **binding)
    make_lab(google, clients)
    jobs = clients.rest("cloudscheduler").projects().locations().jobs()
    jobs.create(parent=JOBS, body=job("30 9 22 11 *")).execute()
    google.clock.advance(7200)
    assert {each.status for each in google.scheduler.fired} == {status}
    assert any(each.endswith("clusters/lab") for each in google.left())


def test_a_schedule_that_was_changed_paused_or_deleted_is_not_due_any_more(google, clients):
    make_janitor(clients)
    jobs = clients.rest("cloudscheduler").projects().locations().jobs()
    for name in ("changed", "paused", "deleted"):
        jobs.create(parent=JOBS, body=job("30 9 22 11 *", name)).execute()
    body = {"schedule": "0 12 22 11 *"}
    jobs.patch(name=f"{JOBS}/jobs/changed", updateMask="schedule", body=body).execute()
    jobs.pause(name=f"{JOBS}/jobs/paused", body={}).execute()
    jobs.delete(name=f"{JOBS}/jobs/deleted").execute()
    google.clock.advance(3600)
    assert google.scheduler.fired == []
    google.clock.advance(3 * 3600)
    assert {each.job for each in google.scheduler.fired} == {f"{JOBS}/jobs/changed"}
    with pytest.raises(HttpError, match="Schedule or time zone is invalid"):
        jobs.create(parent=JOBS, body=job("61 9 * * *")).execute()


def test_fields_of_cron_say_when():
    def due(schedule, zone="Etc/UTC"):
        return cron.next_after(schedule, BEGIN, zone).strftime("%d %b %H:%M")

    assert due("0 9 * * *") == "23 Nov 09:00"  # it is 9 already
    assert due("*/20 9-10 * * *") == "22 Nov 09:20"
    assert due("0 4 * * 1,3") == "23 Nov 04:00"
    assert due("0 9 * * *", "America/New_York") == "22 Nov 14:00"
    with pytest.raises(ValueError, match="never due"):
        due("0 0 31 2 *")


def test_a_fake_in_a_process_of_its_own_is_told_over_http():
    command = [sys.executable, "-m", "tests.cloud.google"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        clients = Clients(json.loads(process.stdout.readline()))
        zones = clients.rest("compute").zones()

        def tell(word, **given):
            url = zones._baseUrl.removesuffix("compute/v1/") + f"_fake/{word}"
            with urlopen(Request(url, json.dumps(given).encode(), method="POST")) as answer:
                return json.load(answer)

        tell("fail", method="compute.zones.*", nth=1, error={"code": "UNAVAILABLE", "message": "later"})
        with pytest.raises(HttpError, match="later"):
            zones.list(project=PROJECT).execute()
        make_lab_begun = types.Cluster(name="lab", initial_node_count=1)
        clients.container.create_cluster(parent=PLACE, cluster=make_lab_begun)
        tell("advance", seconds=300)
        lab = clients.container.get_cluster(name=f"{PLACE}/clusters/lab")
        assert lab.status == types.Cluster.Status.RUNNING
        assert any(each.endswith("clusters/lab") for each in tell("left"))
        calls = tell("calls")
        assert [each["method"] for each in calls][0] == "compute.zones.list"
        assert datetime.fromisoformat(calls[-1]["at"]) > datetime.fromisoformat(calls[0]["at"])
        clients.close()
        process.stdin.close()
        assert process.wait(60) == 0
