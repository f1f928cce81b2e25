"""What stands in the way of a GKE cluster is told before anything is made, at once, with what mends it."""

from datetime import UTC, datetime

import pytest

from clouds.google import preflight, prices
from clouds.google.gke import GkeCluster
from clouds.google.machines import MachinePool
from clouds.google.permissions import NEEDED, role_for
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan
from clouds.tags import Tags
from kitlib.clusters.base import Shape
from kitlib.clusters.checks import Level
from kitlib.errors import BadInput, PreflightFailed

from .google.api_errors import ApiError
from .google.fake import PROJECT

END = datetime(2026, 11, 22, 13, tzinfo=UTC)
T4 = {"nodes": 2, "accelerator": "nvidia-tesla-t4"}


def looked(zone="us-central1-c", name="lab", project=PROJECT, **machines):
    session = GcpSession(project, zone)
    report = preflight.check(
        GkePlan(session, Tags(name, "ada", "spring", END), MachinePool.of(**(T4 | machines)))
    )
    return {each.name: each for each in report.checks}, report


def test_a_project_in_which_all_is_well_passes_and_nothing_was_made(google):
    checks, report = looked()
    assert report.ok, report
    assert checks["quota NVIDIA_T4_GPUS"].words == "2 needed, 8 of 8 free in us-central1"
    assert google.left() == []


@pytest.mark.parametrize(
    ("asked", "check", "fix"),
    [
        ({"zone": "us-centrall1-c"}, "zone", 'zone="us-central1-c"'),
        ({"zone": "us-central1"}, "zone", 'zone="us-central1-a"'),
        ({"accelerator": "nvidia-t4"}, "accelerator", 'accelerator="nvidia-tesla-t4"'),
        ({"zone": "us-east1-b"}, "accelerator", 'zone="us-east1-c"'),
        ({"gpus": 8}, "accelerator", "gpus=4"),
        ({"machine_type": "n1-standart-4"}, "machine type", 'machine_type="n1-standard-4"'),
    ],
)
def test_a_typo_or_what_a_zone_does_not_have_is_told_with_what_was_meant(google, asked, check, fix):
    checks, _ = looked(**asked)
    assert checks[check].level is Level.FAILED
    assert fix in checks[check].fix


def test_all_that_stands_in_the_way_is_told_at_once(google):
    google.quota("NVIDIA_T4_GPUS", 0, region="us-central1")
    google.project.billing = False
    google.project.denied |= {"container.clusters.create", "iam.serviceAccounts.actAs"}
    checks, report = looked()
    assert {each.name for each in report.failures} >= {"billing", "permissions", "quota NVIDIA_T4_GPUS"}
    assert "roles/iam.serviceAccountUser" in checks["permissions"].fix
    assert "metric=NVIDIA_T4_GPUS" in checks["quota NVIDIA_T4_GPUS"].fix
    assert "billing/linkedaccount" in checks["billing"].fix
    with pytest.raises(PreflightFailed, match="nothing was made"):
        report.raise_failures()


def test_apis_that_are_off_come_with_the_line_that_enables_them(google):
    google.project.enabled -= {"container", "file"}
    checks, _ = looked()
    line = f"gcloud services enable container.googleapis.com file.googleapis.com --project={PROJECT}"
    assert line in checks["APIs"].fix


def test_a_project_that_is_not_there_stops_the_questions(google):
    checks, _ = looked(project="no-such-project")
    assert list(checks) == ["credentials", "project"]
    assert "gcloud projects list" in checks["project"].fix


def test_a_name_that_somebody_else_has_is_refused_before_anything_is_made(google):
    session = GcpSession(PROJECT, "us-central1-c")
    body = {"name": "trainyard-lab", "autoCreateSubnetworks": False}
    session.rest("compute", "networks.insert", project=PROJECT, body=body)
    session.container(
        "create_cluster", parent=session.place, cluster={"name": "lab", "initial_node_count": 1}
    )
    google.clock.advance(300)
    _, report = looked()
    said = [each.words for each in report.failures if each.name == "name"]
    assert len(said) == 2 and all("not the kit's" in each for each in said)


def test_prices_are_those_of_the_list_and_without_it_those_of_the_kits_table(google):
    def estimate(spot=False):
        plan = GkePlan(
            GcpSession(PROJECT, "us-central1-c"), Tags("lab", "", ""), MachinePool.of(**T4, spot=spot)
        )
        return prices.estimate(plan, hours=4)

    listed = {each.what: each for each in estimate().prices}
    gpu = listed["GPU nvidia-tesla-t4"]
    assert (gpu.dollars_an_hour, gpu.count) == (0.35, 2)
    assert gpu.source.startswith("price list")
    machine = listed["machine n1-standard-4"]
    assert machine.dollars_an_hour == pytest.approx(4 * 0.031611 + 15 * 0.004237)
    google.fail("cloudbilling.services.skus.list", 1, ApiError("PERMISSION_DENIED", "no"), times=10)
    table = estimate(spot=True)
    assert not table.unknown
    assert all("the kit's table" in each.source for each in table.prices)
    assert 0.5 < table.an_hour < 3
    assert any("Filestore" in each and "1 TiB" in each for each in table.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no zone is named"),
        ({"zone": "us-central1-c", "region": "us-central1"}, "no option region"),
        ({"zone": "us-central1-c", "hours": 0}, "hours are a number"),
        ({"zone": "us-central1-c", "disk_gb": 5}, "disk_gb"),
        ({"zone": "us-central1-c", "admins": ["ada@example.org"]}, "by an address"),
        ({"zone": "us-central1-c", "admins": "user:ada@example.org"}, "admins are a list"),
    ],
)
def test_options_that_cannot_be_are_refused_before_google_is_asked(google, options, words):
    with pytest.raises(BadInput, match=words):
        GkeCluster.create("lab", Shape(2, options=options))
    with pytest.raises(BadInput, match="begins with a letter"):
        GkeCluster.create("1lab", Shape(2, options={"zone": "us-central1-c"}))
    assert google.calls == []


def test_nothing_is_made_without_a_yes_nor_above_the_budget(google, state_home):
    options = {"zone": "us-central1-c", "accelerator": "nvidia-tesla-t4"}
    with pytest.raises(BadInput, match="nobody can be asked"):
        GkeCluster.create("lab", Shape(2, options=options))
    with pytest.raises(BadInput, match="above the budget"):
        GkeCluster.create("lab", Shape(2, options=options | {"confirm": True, "budget": 1}))
    assert google.left() == []


def test_each_permission_that_is_needed_has_a_role_that_gives_it():
    assert all(role_for(each) != "roles/editor" for each in NEEDED)
