"""What the kit has at a simulated cloud is listed and deleted from a process that made none of it."""

import pytest

import kitlib as kit
from clouds import inventory
from kitlib.errors import BadInput

from .scenarios import CLUSTER, AwsScenario, GcpScenario


def list_and_delete(world, provider):
    world.create(workers=8)
    table = kit.list_resources(provider)
    assert {each["cluster"] for each in table} == {CLUSTER}
    assert "ada" in {each["owner"] for each in table}  # some things of AWS have no tags of their own
    assert "cluster" in {each["what"] for each in table}
    left = inventory.delete_found(
        inventory.clouds(provider), clusters=CLUSTER, dry_run=False, clock=world.clock, workers=8
    )
    assert (left.rows, world.left()) == ([], [])
    assert len(kit.list_resources(provider)) == 0


def test_what_is_at_google_cloud_is_listed_and_deleted_by_its_labels(google, monkeypatch):
    list_and_delete(GcpScenario(google, monkeypatch.setattr), "gke")


def test_what_is_at_aws_is_listed_and_deleted_by_its_tags(amazon, monkeypatch):
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
    list_and_delete(AwsScenario(amazon, {}), "eks")


def test_all_regions_are_looked_through_where_the_configuration_names_none(amazon, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert len(kit.list_resources("eks", regions="all")) == 0
    with pytest.raises(BadInput, match="no region is named"):
        kit.list_resources("eks")
