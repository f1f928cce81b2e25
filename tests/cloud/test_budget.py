"""A budget counts what stands already, in all regions, until its end: asked of the fake clouds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import kitlib as kit
from clouds import inventory
from clouds.aws.eks import EksCluster
from clouds.aws.session import AwsSession as AmazonSession
from clouds.google.gke import GkeCluster
from clouds.google.machines import MachinePool
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, resources
from clouds.reconciler import reconcile
from clouds.tags import Tags
from kitlib.errors import BadInput, ClusterNotFound

from .eks_lifecycle import EksLifecycle
from .google.fake import PROJECT
from .simulated_clock import SimulatedClock

ZONE = "us-central1-c"


@pytest.fixture(autouse=True)
def no_budget(monkeypatch, state_home):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)


def test_what_stands_at_aws_counts_for_another_region_for_more_nodes_and_for_more_hours(amazon, monkeypatch):
    life = EksLifecycle(amazon)
    life.create()
    lab = EksCluster("lab", life.plan.session)
    cost = lab._cost()
    assert 3 < cost.hours < 4.1 and 0.5 < cost.an_hour < 1
    assert {each.what: each.count for each in cost.prices}["node m5.xlarge"] == 2
    before = amazon.left()

    elsewhere = {"name": "other", "nodes": 2, "region": "eu-central-1", "confirm": True}
    with pytest.raises(BadInput, match=r"beside 2\.\d+ for what is there already"):
        kit.create_cluster("eks", **elsewhere, budget=4)
    monkeypatch.setenv("TRAINYARD_BUDGET", "4")
    with pytest.raises(BadInput, match="above the budget"):
        lab.scale(20, confirm=True)
    with pytest.raises(BadInput, match="above the budget"):
        lab.extend(24, confirm=True)
    costs = inventory.costs(inventory.clouds("eks"), budget=4)
    assert [each["what"] for each in costs] == ['cluster "lab" in us-west-2', "together", "budget"]
    assert costs.rows[0][1:3] == costs.rows[1][1:3] and costs.rows[2][2] == "4.00"
    monkeypatch.delenv("TRAINYARD_BUDGET")

    with pytest.raises(BadInput, match="agreed to") as error:
        lab.extend(8)
    assert "more hours of" in error.value.about
    assert amazon.left() == before
    assert "ends at" in lab.extend(2)  # sooner: nobody has to agree
    assert "ends at" in lab.extend(4, confirm=True, budget=5)
    life.delete()
    assert lab._cost() is None and lab._running_costs() == []
    with pytest.raises(ClusterNotFound):
        lab.extend(4, confirm=True)


def test_a_role_whose_tags_name_a_region_that_is_none_costs_nothing(amazon):
    life = EksLifecycle(amazon)
    tags = replace(life.plan.tags, cluster="lab")
    iam = life.plan.session.client("iam")
    written = [{"Key": key, "Value": value} for key, value in tags.amazon().items()]
    name = "trainyard-lab-nowhere-at-all-nodes"
    iam.create_role(RoleName=name, Path="/trainyard/", AssumeRolePolicyDocument="{}", Tags=written)
    assert EksCluster("lab", AmazonSession("us-west-2"))._running_costs() == []


def test_what_stands_at_google_cloud_counts_and_more_machines_have_their_price(google, monkeypatch):
    google.clock.advance((datetime.now(UTC) - google.clock.now).total_seconds())
    session = GcpSession(PROJECT, ZONE)
    tags = Tags("lab", "ada", "class", datetime.now(UTC).replace(microsecond=0) + timedelta(hours=4))
    machines = MachinePool.of(nodes=2, accelerator="nvidia-tesla-t4")
    clock = SimulatedClock(google.clock.advance)
    parts = resources(GkePlan(session, tags, machines))
    reconcile.bring_up(parts, title="it", resume="again", clock=clock)
    lab = GkeCluster("lab", session)
    cost = lab._cost()
    assert 3.9 < cost.hours < 4.1
    assert {each.what: each.count for each in cost.prices}["GPU nvidia-tesla-t4"] == 2

    with pytest.raises(BadInput, match=r"beside \d+\.\d+ for what is there already"):
        options = {"project": PROJECT, "zone": "us-central1-a", "confirm": True}
        kit.create_cluster("gke", name="other", nodes=2, **options, budget=6)
    with pytest.raises(BadInput, match="agreed to") as error:
        lab.scale(4)
    assert error.value.about.startswith("2 more nodes of")
    monkeypatch.setenv("TRAINYARD_BUDGET", "6")
    with pytest.raises(BadInput, match="above the budget"):
        lab.scale(4, confirm=True)
    with pytest.raises(BadInput, match="above the budget"):
        lab.extend(24, confirm=True)
    assert lab._machines() == 2
    costs = inventory.costs(inventory.clouds("gke"), budget=6)
    assert costs.rows[-2][0] == "together" and costs.rows[-1][2] == "6.00"
