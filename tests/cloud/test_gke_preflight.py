"""What prevents a GKE cluster is told before anything is created, all at once, with what to do."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kitlib.clusters.shape import Shape
from kitlib.errors import PreflightFailed
from trainyard_kit.checks import Level
from trainyard_kit.clouds.gke import preflight
from trainyard_kit.clouds.gke.client_errors import role_for
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.machines import GkePlan, choose
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.tags import Tags

from .gke_lifecycle import OPTIONS, GkeProcesses
from .google.fake import PROJECT
from .ready_nodes import ReadyNodes

END = datetime(2026, 11, 22, 13, tzinfo=UTC)
T4 = {"nodes": 2, "accelerator": "nvidia-tesla-t4", "gpus": None, "machine_type": None, "spot": False}


def planned(**machines):
    return GkePlan(Tags("lab", "ada", "spring", END), choose(disk_gb=100, **(T4 | machines)))


def checked(zone="us-central1-c", project=PROJECT, **machines):
    report = preflight.check(GcpSession(project, zone), planned(**machines))
    return {check.name: check for check in report.checks}, report


def test_a_project_in_which_all_is_well_passes_and_nothing_is_created(google):
    checks, report = checked()
    assert report.ok, report
    assert checks["quota NVIDIA_T4_GPUS"].message == "2 needed, 8 of 8 free in us-central1"
    assert google.left() == []


@pytest.mark.parametrize(
    ("asked", "check", "fix"),
    [
        ({"zone": "us-centrall1-c"}, "zone", 'zone="us-central1-c"'),
        ({"zone": "us-central1"}, "zone", 'zone="us-central1-a"'),
        (
            {"accelerator": "nvidia-t4", "machine_type": "n1-standard-4"},
            "accelerator",
            'accelerator="nvidia-tesla-t4"',
        ),
        ({"zone": "us-east1-b"}, "accelerator", 'zone="us-east1-c"'),
        ({"gpus": 8}, "accelerator", "gpus=4"),
        ({"machine_type": "n1-standart-4"}, "machine type", 'machine_type="n1-standard-4"'),
    ],
)
def test_a_typo_or_what_a_zone_does_not_have_is_told_with_what_was_meant(google, asked, check, fix):
    checks, _ = checked(**asked)
    assert checks[check].level is Level.FAILED
    assert fix in checks[check].fix


def test_all_that_prevents_a_cluster_is_told_at_once(google):
    google.quota("NVIDIA_T4_GPUS", 0, region="us-central1")
    google.project.billing = False
    google.project.denied |= {"container.clusters.create", "iam.serviceAccounts.actAs"}
    checks, report = checked()
    assert {failure.name for failure in report.failures} >= {"billing", "permissions", "quota NVIDIA_T4_GPUS"}
    assert "roles/iam.serviceAccountUser" in checks["permissions"].fix
    assert "metric=NVIDIA_T4_GPUS" in checks["quota NVIDIA_T4_GPUS"].fix
    assert "billing/linkedaccount" in checks["billing"].fix
    with pytest.raises(PreflightFailed, match="nothing was created"):
        report.raise_failures()


def test_apis_that_are_off_come_with_the_line_that_enables_them(google):
    google.project.enabled -= {"container", "file"}
    checks, _ = checked()
    line = f"gcloud services enable container.googleapis.com file.googleapis.com --project={PROJECT}"
    assert line in checks["APIs"].fix


def test_a_new_project_is_told_of_apis_billing_and_permissions_in_one_round(google):
    google.project.enabled -= {"compute", "container"}
    google.project.billing = False
    google.project.denied |= {"container.clusters.create"}
    checks, report = checked()
    assert {failure.name for failure in report.failures} == {"APIs", "billing", "permissions"}
    assert checks["zone"].level is checks["quotas"].level is Level.WARN
    assert "not checked yet" in checks["quotas"].message


def test_a_project_that_does_not_exist_stops_the_checks(google):
    checks, _ = checked(project="no-such-project")
    assert list(checks) == ["credentials", "project"]
    assert "gcloud projects list" in checks["project"].fix


def test_quotas_are_counted_for_a_new_cluster_and_for_more_nodes_of_one(google):
    session = GcpSession(PROJECT, "us-central1-c")
    new, more = (preflight.required(session, planned(), new=fresh) for fresh in (True, False))
    assert (new["IN_USE_ADDRESSES"], new["NETWORKS"], new["CPUS"]) == (3, 1, 12)
    assert (more["IN_USE_ADDRESSES"], more["NETWORKS"], more["CPUS"]) == (2, 0, 8)
    spot = preflight.required(session, planned(spot=True))
    assert (spot["CPUS"], spot["PREEMPTIBLE_CPUS"], spot["PREEMPTIBLE_NVIDIA_T4_GPUS"]) == (4, 8, 2)
    hyper = preflight.required(session, planned(accelerator=None, machine_type="n4-standard-4"))
    assert hyper["SSD_TOTAL_GB"] == 50  # a hyperdisk is none of these


@pytest.mark.parametrize(("most", "level"), [(0, Level.FAILED), (8, Level.OK)])
def test_spot_machines_count_against_ordinary_quotas_until_there_are_some_for_spot(google, most, level):
    """https://cloud.google.com/compute/resource-usage"""
    for metric in ("PREEMPTIBLE_CPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"):
        google.quota(metric, 0, region="us-central1")
    google.quota("NVIDIA_T4_GPUS", most, region="us-central1")
    checks, _ = checked(spot=True)
    assert checks["quota CPUS"].message.startswith("12 needed")
    assert checks["quota NVIDIA_T4_GPUS"].level is level and "quota PREEMPTIBLE_CPUS" not in checks


def test_each_permission_that_is_needed_has_a_role_that_gives_it():
    assert all(role_for(permission) != "roles/editor" for permission in preflight.PERMISSIONS)


def permissions() -> dict[str, list[str]]:
    """Read which permissions each method needs: of github.com/iann0036/iam-dataset (MIT), gcp/map.json."""
    return json.loads((Path(__file__).parent / "google" / "permissions.json").read_text(encoding="utf-8"))


def test_the_preflight_asks_for_each_permission_that_a_method_of_the_driver_needs():
    needed = {permission for listed in permissions().values() for permission in listed}
    assert needed <= set(preflight.PERMISSIONS)
    assert len(preflight.PERMISSIONS) <= 100, "one request tests no more"


def test_each_method_in_the_life_of_a_cluster_has_its_permissions_known(
    google, clock, state_home, monkeypatch
):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    user = GkeProcesses(google, monkeypatch.setattr)
    GkeCluster.preflight("lab", Shape(2, options=OPTIONS))
    lab = user.create(private=True)
    lab.kube = ReadyNodes(lab.pool, 3)
    lab.scale(3, confirm=True)
    lab.extend(20, confirm=True)
    lab.upload(__file__, to="data")
    GkeCluster.running_costs(lab.session)
    user.delete()
    methods = {call.method for call in google.calls if call.by == "user"}
    assert methods - {"cloudbilling.projects.getBillingInfo"} <= set(permissions())
