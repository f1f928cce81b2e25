"""What Google Cloud refuses for a while and then allows: new accounts, busy clusters, zones without nodes."""

from datetime import UTC, datetime, timedelta

import pytest

from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.operations import BUSY_SECONDS, NEW_ACCOUNT_SECONDS, Operations
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Steps

from .gke_lifecycle import NAME, ZONE, GkeProcesses, described
from .google.api_errors import ApiError, stockout
from .google.fake import PROJECT

PATH = f"projects/{PROJECT}/locations/{ZONE}/clusters/{NAME}"


@pytest.fixture
def user(google, clock, state_home, monkeypatch):
    return GkeProcesses(google, monkeypatch.setattr)


@pytest.fixture
def operations(google):
    return Operations(GcpSession(PROJECT, ZONE), Steps("lab", clock=google.clock))


@pytest.mark.parametrize("seconds", [20, NEW_ACCOUNT_SECONDS - 20])
def test_a_service_account_that_is_not_known_yet_is_waited_for(google, user, seconds):
    google.delay("account", seconds)
    assert user.create()._describe().state == "running"


def test_an_account_that_stays_unknown_is_told_after_two_minutes(google, user):
    google.delay("account", 3600)
    began = google.clock.date()
    with pytest.raises(GcpError) as caught:
        user.create()
    assert caught.value.reason is ErrorReason.UNKNOWN_ACCOUNT
    waited = (google.clock.date() - began).total_seconds()
    assert NEW_ACCOUNT_SECONDS <= waited < 2 * NEW_ACCOUNT_SECONDS


def test_a_right_that_is_missing_is_told_at_once_where_no_account_is_new(google, operations):
    google.deny("compute.networks.get")
    began = google.clock.date()
    with pytest.raises(GcpError, match=r"compute\.networks\.get"):
        path = f"projects/{PROJECT}/global/networks/default"
        operations.send("network", lambda: operations.session.request("GET", "compute", path))
    assert google.clock.date() - began < timedelta(seconds=5)


def test_a_cluster_that_is_upgraded_is_waited_for_up_to_half_an_hour(google, user):
    lab = user.create(hours=100)
    for cluster in google.world.clusters.values():
        del cluster.maintenance_policy.window  # else nothing is upgraded before the end
    google.container.maintain(25 * 60)
    began = google.clock.date()
    lab.extend(101, confirm=True)
    assert timedelta(minutes=25) <= google.clock.date() - began < timedelta(minutes=32)


def test_a_cluster_that_stays_busy_is_told_after_half_an_hour(google, operations):
    began = google.clock.date()
    busy = ApiError("FAILED_PRECONDITION", "Operation x is currently upgrading cluster lab.")
    google.fail("container.GetCluster", 1, busy, times=10**6)
    with pytest.raises(GcpError, match="currently upgrading") as caught:
        operations.send("cluster", lambda: operations.session.request("GET", "container", PATH))
    assert caught.value.reason is ErrorReason.BUSY
    waited = (google.clock.date() - began).total_seconds()
    assert BUSY_SECONDS <= waited < BUSY_SECONDS + 60


def test_no_upgrade_is_begun_until_the_end(google, user):
    lab = user.create(hours=4)
    (window,) = described().maintenance_policy.window.maintenance_exclusions.values()
    assert window.maintenance_exclusion_options.scope.name == "NO_UPGRADES"
    assert window.end_time.timestamp() >= lab._describe().tags.expires.timestamp()
    assert window.start_time.timestamp() <= datetime.now(UTC).timestamp()


def test_a_region_without_cloud_scheduler_takes_the_neighbours(google, user):
    user.create(zone="europe-west4-a", accelerator="nvidia-l4")
    jobs = [item.path for item in google.rest.store.every("cloudscheduler") if "/jobs/" in item.path]
    assert len(jobs) == 3 and all("/locations/europe-west1/" in job for job in jobs)
    user.delete()
    assert google.left() == []


def test_of_several_stockouts_the_next_zone_with_such_machines_is_taken(google, user):
    google.fail("container.CreateNodePool", 1, stockout(ZONE), times=2)
    user.create()
    pools = described().node_pools
    assert [pool.locations for pool in pools if pool.name == "training"] == [["us-central1-b"]]  # f has no T4
