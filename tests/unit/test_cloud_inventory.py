"""What the kit has at the clouds: listed and deleted by its tags, whoever made it, on made-up clouds."""

from datetime import UTC, datetime

import pytest

from clouds import inventory
from clouds.inventory import Cloud, CloudLocation
from clouds.reconciler.reconcile import bring_up
from clouds.tags import Tags
from kitlib.errors import BadInput, NotConfirmed, ProviderFailed

from ..cloud.simulated_cloud import Plan, SimulatedCloud, plans

UNTIL = datetime(2026, 12, 1, 12, 30, tzinfo=UTC)
PARTS = plans(
    Plan("network"),
    Plan("cluster", depends_on=("network",), seconds=540, seconds_gone=300),
)


class Region:
    """A place with clusters, each of which has all parts."""

    def __init__(self, name, *clusters):
        self.name = name
        self.clouds = {each: SimulatedCloud(PARTS) for each in clusters}
        for cloud in self.clouds.values():
            bring_up(cloud.process(), title="it", resume="again", clock=cloud.clock)

    def discover(self, cluster=None):
        found = []
        for name, cloud in self.clouds.items():
            if cluster in (None, name):
                for each in cloud.process():
                    each.tags = Tags(name, "ada", "course", UNTIL)
                    each.hourly_cost = "0.10 dollars an hour" if each.name == "cluster" else ""
                    found.append(each)
        return found

    def cloud(self, provider="eks"):
        return Cloud(provider, lambda: [CloudLocation(provider, self.name, self.discover)])

    def left(self):
        return {name: cloud.left() for name, cloud in self.clouds.items() if cloud.left()}


@pytest.fixture
def region():
    return Region("eu-central-1", "lab", "other")


def clock_of(region):
    """A clock that takes all of a region's along."""
    first, *others = region.clouds.values()
    for each in others:
        each.clock = first.clock
    return first.clock


def refused():
    raise ProviderFailed("no credentials were found", about="gke", fix="gcloud auth")


def test_what_is_there_is_listed_with_whose_it_is_its_end_and_what_it_costs(region):
    rows = list(inventory.find([region.cloud()]).table())
    assert [(each["cluster"], each["what"]) for each in rows] == [
        ("lab", "network"),
        ("lab", "cluster"),
        ("other", "network"),
        ("other", "cluster"),
    ]
    assert rows[1]["owner"] == "ada"
    assert rows[1]["expires"] == "2026-12-01 12:30 UTC"
    assert rows[1]["costs"] == "0.10 dollars an hour"
    assert rows[1]["where"] == "eu-central-1"


def test_what_an_index_remembers_and_is_gone_is_not_listed(region):
    region.clouds["lab"].things.clear()
    assert {each["cluster"] for each in inventory.find([region.cloud()]).table()} == {"other"}


def test_a_cloud_that_cannot_be_asked_is_a_row_and_not_silence(region):
    table = inventory.find([region.cloud(), Cloud("gke", refused)]).table()
    assert table[4]["what"] == "gke could not be asked"
    assert table[4]["id"] == "no credentials were found"


def test_when_no_cloud_can_be_asked_the_error_is_the_clouds():
    with pytest.raises(ProviderFailed, match="no credentials"):
        inventory.find([Cloud("gke", refused)])


def test_there_are_two_clouds_to_ask():
    with pytest.raises(BadInput, match="eks, gke"):
        inventory.list_resources("azure")


def test_a_dry_run_deletes_nothing(region):
    shown = inventory.delete_found([region.cloud()], dry_run=True)
    assert len(shown) == 4
    assert set(region.left()) == {"lab", "other"}


def test_one_cluster_is_deleted_and_others_stay(region):
    left = inventory.delete_found(
        [region.cloud()], clusters="lab", dry_run=False, ask=pytest.fail, clock=clock_of(region)
    )
    assert len(left) == 0
    assert set(region.left()) == {"other"}


def test_more_than_one_cluster_has_to_be_typed_for(region):
    asked = []
    with pytest.raises(NotConfirmed):
        inventory.delete_found([region.cloud()], dry_run=False, ask=lambda text: asked.append(text) or "no")
    assert "2 clusters" in asked[0]
    assert "lab (eks, eu-central-1)" in asked[0]
    assert set(region.left()) == {"lab", "other"}
    inventory.delete_found([region.cloud()], dry_run=False, ask=lambda text: "delete", clock=clock_of(region))
    assert region.left() == {}


def test_what_is_left_is_named_with_its_price_and_the_others_are_deleted_all_the_same(region):
    clock = clock_of(region)
    cloud = region.clouds["lab"]
    cloud.on_call = lambda number: cloud.faults.update(
        {number: "refused"} if cloud.log[number][1:] == ("delete", "cluster") else {}
    )
    with pytest.raises(ProviderFailed, match="(?s)something is left.*cluster.*0.10 dollars.*not allowed"):
        inventory.delete_found([region.cloud()], dry_run=False, confirm=True, clock=clock)
    assert region.left() == {"lab": ["cluster", "network"]}


def test_a_place_that_does_not_answer_keeps_a_deletion_from_passing_for_complete(region):
    asked = [region.cloud(), Cloud("gke", refused)]
    with pytest.raises(ProviderFailed, match="no credentials"):
        inventory.delete_found(asked, dry_run=False, confirm=True, clock=clock_of(region))
    assert region.left() == {}
