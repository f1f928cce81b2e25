"""The kit's resources at the clouds: listed and deleted by tags, whoever created them; what clusters cost."""

import io

import pytest

from kitlib.errors import BadInput, KitError, NotConfirmed, ProviderFailed
from trainyard_kit.clouds import resources
from trainyard_kit.clouds.resources import Place
from trainyard_kit.clouds.spec import ClusterInfo, Machines

from .made_up_cloud import PARTS, Account, MoonCluster, provide, tags


class Mute(MoonCluster):
    """A cloud without credentials."""

    @classmethod
    def find_resources(cls, session, cluster=None):
        raise ProviderFailed("no credentials were found", about="gke", fix="log in")

    running_costs = find_resources


@pytest.fixture
def account(monkeypatch):
    """Two complete clusters in an account that both clouds' names lead to."""
    moon_account = Account()
    monkeypatch.setattr(MoonCluster, "account", moon_account, raising=False)
    monkeypatch.setattr(MoonCluster, "clock", moon_account.clock)
    provide(monkeypatch, eks=MoonCluster, gke=MoonCluster)
    for name in ("lab", "other"):
        moon_account.things |= {(name, part): "active" for part in PARTS}
        moon_account.described[name] = ClusterInfo(tags(name), Machines("m5.xlarge", 2), where="moon-1")
    return moon_account


def place(account, provider=MoonCluster):
    return Place(provider, account)


def test_a_cloud_that_does_not_answer_is_a_row_and_not_silence(account):
    rows_of_resources, unanswered = resources.find([place(account), place(account, Mute)])
    last = list(resources.table(rows_of_resources, unanswered))[-1]
    assert last["resource"] == "moon-1 could not be queried" and last["id"] == "no credentials were found"


def test_where_no_cloud_answers_the_error_is_the_clouds(account):
    with pytest.raises(KitError, match="no credentials"):
        resources.find([place(account, Mute)])
    with pytest.raises(KitError, match="no credentials"):
        resources.list_resources(regions="nowhere")


def test_a_cloud_that_there_is_not_is_refused(account):
    with pytest.raises(BadInput, match="eks, gke"):
        resources.list_resources("azure")
    with pytest.raises(BadInput, match="no cluster is named"):
        resources.delete_resources(clusters=[])


def test_more_than_one_cluster_has_to_be_typed_for(account, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("no\ndelete\n"))
    with pytest.raises(NotConfirmed):
        resources.delete_resources("eks", dry_run=False)
    question = capsys.readouterr().out
    assert "2 clusters" in question and "lab (moon, moon-1)" in question
    assert account.left() == ["lab", "other"]
    resources.delete_resources("eks", dry_run=False)
    assert account.left() == []


def test_a_cluster_that_cannot_be_deleted_does_not_keep_the_others(account):
    account.faults["delete", "network"] = ProviderFailed("in use", about="network", fix="wait")
    with pytest.raises(ProviderFailed, match="in use; in use") as error:
        resources.delete_resources("eks", dry_run=False, confirm=True)
    assert error.value.about == "network, network" and "docs/clouds.md" in error.value.fix
    assert account.calls.count(("delete", "cluster")) == 2


def test_a_place_that_does_not_answer_keeps_a_deletion_from_passing_for_complete(account, monkeypatch):
    both = [place(account), place(account, Mute)]
    monkeypatch.setattr(resources, "resolve_places", lambda *given, **where: (both, []))
    with pytest.raises(ProviderFailed, match="no credentials"):
        resources.delete_resources(dry_run=False, confirm=True)
    assert account.left() == []


def test_costs_are_summed_over_clusters_and_shown_beside_the_budget(account):
    table = resources.costs([place(account), place(account)], budget=20)
    rows = {row["item"]: row for row in table}
    assert list(rows) == ['cluster "lab" in moon-1', 'cluster "other" in moon-1', "total", "budget"]
    hourly = float(rows['cluster "lab" in moon-1']["dollars an hour"])
    assert float(rows["total"]["dollars an hour"]) == pytest.approx(2 * hourly, abs=0.02)
    assert rows["budget"]["until it expires"] == "20.00"
    account.described["lab"] = ClusterInfo(tags(), Machines("z9.huge", 2), where="moon-1")
    assert resources.costs([place(account)]).rows[-1][1].startswith("at least ")
    assert "no credentials" in repr(resources.costs([place(account, Mute)]))
