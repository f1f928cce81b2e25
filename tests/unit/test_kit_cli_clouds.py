"""The verbs of a terminal that concern clouds: which provider is meant, its own options, what is asked."""

import importlib.util
import sys
from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib import clusters, plugins
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound, ProviderFailed
from trainyard_kit.cli import main
from trainyard_kit.cli.options import options_of
from trainyard_kit.clouds import resources
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.spec import ClusterInfo, Machines

from .made_up_cloud import Account, MoonCluster, provide, tags


@CloudCluster.register
class Rented:
    """A provider of clusters, as far as the verbs need one."""

    provider = "rented"
    said: list = []

    def __init__(self, name):
        self.name = name

    def announce_end(self):
        return self

    @classmethod
    def create(cls, name, shape, *, recreate):
        cls.said.append(("create", name, dict(shape.options), shape.nodes))
        return cls(name)

    @classmethod
    def find(cls, name, *, region=None):
        return cls(name) if name == "lab" and region in (None, "eu-1") else None

    @classmethod
    def list(cls):
        return [{"cluster": "lab"}]

    def nodes(self):
        return Table(("node",), [("node-0",)])

    def delete(self):
        self.said.append(("delete", self.name))

    def scale(self, nodes, *, confirm, budget):
        return Table(("asked",), [(f"{nodes} nodes, {confirm}, {budget}",)])

    def extend(self, *, hours, confirm, budget):
        return f"{self.name} ends in {hours:g} hours, {confirm}, {budget}"


@pytest.fixture
def rented(monkeypatch):
    monkeypatch.setattr(Rented, "said", [])
    provide(monkeypatch, rented=Rented)
    monkeypatch.setattr(clusters, "_used", lambda: ["rented"])
    return Rented.said


def run(*words):
    return CliRunner().invoke(main.main, words)


def test_options_are_as_python_has_them():
    options = options_of(
        ["spot=true", "hours=2.5", "nodes=3", "region=eu-1", "version=1.30", 'labels={"a": "b"}']
    )
    assert options == {
        "spot": True,
        "hours": 2.5,
        "nodes": 3,
        "region": "eu-1",
        "version": "1.30",
        "labels": {"a": "b"},
    }
    with pytest.raises(BadInput, match="a key and a value"):
        options_of(["spot"])


def test_a_cluster_is_created_with_its_providers_own_options(rented):
    done = run("cluster", "create", "lab", "--provider", "rented", "--nodes", "2", "--set", "region=eu-1")
    assert done.exit_code == 0
    assert rented == [("create", "lab", {"region": "eu-1"}, 2)]


@pytest.mark.parametrize("verb", ["create", "delete", "scale"])
def test_an_option_that_all_providers_have_is_refused_in_a_sentence(rented, verb):
    done = run("cluster", verb, "2", "--set", "name=other")
    assert done.exit_code == 1
    assert "not specific to a provider" in done.stderr
    assert "--set name=other" in done.stderr
    assert rented == []


def test_a_cluster_of_any_provider_is_deleted_by_its_name(rented):
    assert run("cluster", "delete", "lab").exit_code == 0
    assert rented == [("delete", "lab")]


def test_deleting_an_unknown_cluster_is_an_error_unless_ignored(rented):
    done = run("cluster", "delete", "gone")
    assert done.exit_code == 1
    assert "there is no such cluster" in done.stderr
    assert "trainyard resources list" in done.stderr
    assert run("cluster", "delete", "gone", "--ignore-not-found").exit_code == 0
    assert rented == []


@pytest.mark.usefixtures("rented")
def test_a_cluster_is_found_at_the_place_that_is_named_and_nowhere_else():
    assert kit.connect("lab", provider="rented", region="eu-1").name == "lab"
    with pytest.raises(ClusterNotFound, match="used from this machine: lab"):
        kit.connect("lab", provider="rented", region="us-9")
    with pytest.raises(BadInput, match="find it by: region"):
        kit.connect("lab", provider="rented", zone="a")
    with pytest.raises(BadInput, match="pass provider="):
        kit.connect("lab", region="eu-1")
    with pytest.raises(BadInput, match="use one of the providers: .*rented"):
        kit.connect("lab", provider="azure")


@pytest.mark.usefixtures("rented")
def test_a_clusters_end_is_put_off():
    assert run("extend", "lab", "--hours", "3").stdout == "lab ends in 3 hours, False, None\n"
    assert "3 hours, True, 20" in run("extend", "lab", "--hours", "3", "--yes", "--budget", "20").stdout


@pytest.mark.usefixtures("rented")
def test_nodes_are_scaled_down_to_none_and_up_for_a_price_that_is_agreed_to():
    assert "0 nodes, False, None" in run("cluster", "scale", "0", "-c", "lab").stdout
    words = ("4", "-c", "lab", "--yes", "--budget", "20", "--set", "region=eu-1", "--provider", "rented")
    assert "4 nodes, True, 20" in run("cluster", "scale", *words).stdout
    assert run("cluster", "scale", "4", "-c", "other").exit_code == 1


@pytest.mark.usefixtures("rented")
def test_a_provider_without_scaling_suggests_a_new_cluster(monkeypatch):
    monkeypatch.setattr(main, "ScalableCluster", MoonCluster)  # of which this one is none
    done = run("cluster", "scale", "4", "-c", "lab")
    assert (done.exit_code, "cannot be scaled" in done.stderr) == (1, True)
    assert "another number of nodes: trainyard cluster create lab" in done.stderr


def test_resources_are_listed_first_and_deleted_only_when_that_is_said(monkeypatch):
    account = Account()
    monkeypatch.setattr(MoonCluster, "account", account, raising=False)
    monkeypatch.setattr(MoonCluster, "clock", account.clock)
    provide(monkeypatch, eks=MoonCluster)
    monkeypatch.setenv("TRAINYARD_BUDGET", "20")
    account.things["lab", "network"] = "active"
    account.described["lab"] = ClusterInfo(tags(), Machines("m5.xlarge", 2), where="moon-1")
    shown = run("resources", "list", "--provider", "eks", "--region", "all")
    assert "lab      network" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["budget", "-", "20.00", "-"] in rows and any(row[0] == "total" for row in rows if row)
    assert "moon-1" in run("resources", "list", "--cluster", "lab").stdout
    assert "no resources of the kit" in run("resources", "list", "--cluster", "other").stdout
    tried = run("resources", "delete", "lab")
    assert "Nothing was deleted" in tried.stderr
    assert account.left() == ["lab"]
    assert run("resources", "delete").exit_code == 2
    done = run("resources", "delete", "lab", "--yes")
    assert (done.exit_code, account.left()) == (0, [])
    assert "no resources of the kit" in done.stdout
    assert resources.delete_resources(clusters="lab").rows == []


def test_packages_that_are_not_installed_are_named(monkeypatch):
    assert {"workshop", "list_resources"} <= set(dir(kit))
    monkeypatch.setattr(
        plugins, "entries", lambda group: {"workshop": EntryPoint("workshop", "no_such_package", group)}
    )
    with pytest.raises(ProviderFailed, match="no_such_package is not installed"):
        _ = kit.workshop


def test_without_the_libraries_of_a_cloud_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("trainyard_kit.clouds.eks")]:
        monkeypatch.delitem(sys.modules, name)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "boto3" else find(name))
    with pytest.raises(ProviderFailed, match="boto3 is not installed") as missing:
        kit.create_cluster("eks", region="eu-central-1")
    assert missing.value.fix == "install trainyard-kit with its extra [clouds]"
    assert "boto3 is not installed" in repr(kit.credentials())
