"""The lifecycle of a cluster at a cloud, at a made-up one: prices and consent, going on, scaling, its end."""

import itertools
import json
import os
import stat
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dev
import pytest
import yaml
from dev_commands import Commands

from kitlib import clusters
from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput, ClusterNotFound, ClusterUnreachable, PreflightFailed, ProviderFailed
from trainyard_kit import checks

from .made_up_cloud import Account, MoonCluster, provide, tags


@pytest.fixture
def account(monkeypatch, tmp_path):
    """An empty account, files in a folder of the test's own, and nobody at the keyboard."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    moon = Account()
    monkeypatch.setattr(MoonCluster, "account", moon, raising=False)
    monkeypatch.setattr(MoonCluster, "clock", moon.clock)
    monkeypatch.setattr(
        "trainyard_kit.clouds.cluster.release",
        lambda kube, about: moon.calls.append(("release", about)),
    )
    return moon


def create(nodes=2, *, recreate=False, **options):
    shape = Shape(nodes, options={"confirm": True} | options)
    return MoonCluster.create("lab", shape, recreate=recreate)


def test_a_cluster_is_reached_by_a_kubeconfig_without_a_secret(account):
    cluster = create()
    assert account.calls == [("create", part) for part in ("network", "cluster", "nodes")] + [
        ("install", "addons")
    ]
    assert cluster.status["state"] == "active" and cluster.status["region"] == "moon-1"
    assert [cluster["cluster"] for cluster in MoonCluster.list()] == ["lab"]
    assert "not contacted" in MoonCluster.list()[0]["note"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    assert config["users"][0]["user"]["exec"]["command"] == "moon-token"
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600
    assert json.loads(cluster.kubeconfig.with_name("lab.json").read_text()) == {"region": "moon-1"}


def test_clusters_of_one_name_in_two_places_have_a_kubeconfig_each(account):
    cluster = create()
    elsewhere = MoonCluster("lab", Account())
    elsewhere.session.region = "moon-2"
    first = cluster.kubeconfig
    second = elsewhere.store.kubeconfig("lab", elsewhere._location())
    assert first.name == "lab.moon-1.kubeconfig" and second.name == "lab.moon-2.kubeconfig"
    elsewhere.store.write("lab", elsewhere._location())
    elsewhere.store.write_kubeconfig("lab", elsewhere._location(), {"server": "another"})
    assert "moon-token" in first.read_text() and stat.S_IMODE(second.stat().st_mode) == 0o600
    cluster.store.forget("lab", cluster._location())
    assert not first.exists() and second.exists()
    assert elsewhere.store.read("lab") == {"region": "moon-2"}  # the last one that was used
    elsewhere.store.forget("lab", elsewhere._location())
    assert MoonCluster.list() == [] and not second.exists()


def test_concurrent_writes_of_a_kubeconfig_leave_one_complete_file(account):
    where, texts = {"region": "moon-1"}, [{"server": str(number) * 5000} for number in range(8)]
    threads = [
        threading.Thread(target=MoonCluster.store.write_kubeconfig, args=("lab", where, text))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = MoonCluster.store.kubeconfig("lab", where)
    assert yaml.safe_load(file.read_text()) in texts
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_image_of_a_release_is_written_to_where_the_preflight_reads_it(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRAINYARD_IMAGE", raising=False)
    program, digest = tmp_path / "docker", f"sha256:{'b' * 64}"
    program.write_text(f"#!/bin/sh\ncase $3 in inspect) echo {digest};; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(dev, "PUBLISHED", tmp_path / "published.toml")
    dev.image_index(Commands({"IMAGE": "Registry.example/Lab/trainer"}))
    name = f"registry.example/lab/trainer@{digest}"
    assert f"TRAINYARD_IMAGE={name}" in checks.trainer_image(dev.PUBLISHED).message
    assert f'    digest = "{digest}"\n' in capsys.readouterr().out


def test_the_preflight_names_the_published_image_or_who_builds_it(account, tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINYARD_IMAGE", raising=False)
    unpublished = checks.trainer_image()
    assert "is not published yet" in unpublished.message and "`kit.build_image(" in unpublished.fix
    file = tmp_path / "published.toml"
    file.write_text(f'name = "registry.example/kit/trainer"\ndigest = "sha256:{"a" * 64}"\n')
    assert "TRAINYARD_IMAGE=registry.example/kit/trainer@sha256:aaa" in checks.trainer_image(file).message
    monkeypatch.setenv("TRAINYARD_IMAGE", "registry.example/own")
    assert checks.trainer_image(file).message == "registry.example/own, set by TRAINYARD_IMAGE"


def test_nothing_is_created_unless_the_price_is_agreed_to_and_within_the_budget(account):
    with pytest.raises(BadInput, match="needs confirmation"):
        create(confirm=False)
    with pytest.raises(BadInput, match="above the budget"):
        create(budget=1)
    assert account.calls == [] and MoonCluster.list() == []


def test_a_budget_counts_the_clusters_that_are_there_until_their_ends(account):
    create(hours=10)
    with pytest.raises(BadInput, match=r"on top of \d+\.\d\d for existing clusters"):
        MoonCluster.create("other", Shape(2, options={"confirm": True, "budget": 6}))


def test_a_failed_preflight_prevents_the_creation(account):
    with pytest.raises(PreflightFailed, match="5 nodes"):
        create(nodes=6)
    assert not MoonCluster.preflight("lab", Shape(6)).ok and MoonCluster.preflight("lab", Shape(5)).ok
    assert account.calls == []


def test_a_resumed_creation_confirms_the_missing_nodes_again(account):
    account.faults["create", "nodes"] = ProviderFailed("no capacity", about="nodes", fix="another type")
    with pytest.raises(ProviderFailed, match="no capacity"):
        create()
    account.faults.clear()
    for options, words in (
        ({"nodes": 5, "budget": 2}, "above the budget"),
        ({"confirm": False}, "needs confirmation"),
    ):
        with pytest.raises(BadInput, match=words):
            create(**options)
    create()
    assert account.calls.count(("create", "cluster")) == 1
    assert account.described["lab"].state == "active"


def test_existing_machines_do_not_change_and_recreate_deletes_them_first(account):
    create()
    with pytest.raises(BadInput, match="other machines"):
        create(spot=True)
    with pytest.raises(BadInput, match="needs confirmation"):
        create(confirm=False, recreate=True)
    assert ("delete", "cluster") not in account.calls
    create(spot=True, hours=10, recreate=True)
    assert account.described["lab"].machines.spot
    left = account.described["lab"].tags.expires - datetime.now(UTC)
    assert left == pytest.approx(timedelta(hours=10), abs=timedelta(minutes=1))
    assert account.calls.count(("delete", "cluster")) == 1


def test_options_and_names_are_checked_before_the_cloud_is_asked(account):
    with pytest.raises(BadInput, match="has no option colour"):
        create(colour="blue")
    with pytest.raises(BadInput, match="letters and digits"):
        MoonCluster.create("l/b", Shape(1))
    with pytest.raises(BadInput, match="from 0.5 to 336"):
        create(hours=1000)
    assert account.calls == []


def test_more_nodes_cost_and_fewer_do_not(account):
    cluster = create()
    with pytest.raises(BadInput, match="needs confirmation") as error:
        cluster.scale(4)
    assert "2 more nodes" in error.value.about
    cluster.scale(4, confirm=True)
    described = account.described["lab"]
    account.described["lab"] = replace(described, machines=replace(described.machines, gpus=1))
    assert cluster.training_gpus() == (1, 1, 1, 1)  # also of those that an autoscaler has removed
    cluster.scale(0)
    assert account.described["lab"].machines.count == 0
    assert cluster.training_gpus() == ()
    cluster.scale_up_to(3, confirm=True)
    cluster.scale_up_to(1)
    assert account.described["lab"].machines.count == 3
    assert "5 of m5.xlarge, 2 more" in repr(cluster.check_quota(5, existing=3))


def test_its_end_moves_and_only_more_hours_cost(account):
    cluster = create(hours=4)
    with pytest.raises(BadInput, match="needs confirmation") as error:
        cluster.extend(8)
    assert "more hours of" in error.value.about
    assert "expires at" in str(cluster.extend(2))
    assert "expires at" in str(cluster.extend(8, confirm=True))
    left = account.described["lab"].tags.expires - datetime.now(UTC)
    assert left == pytest.approx(timedelta(hours=8), abs=timedelta(minutes=1))


def test_resources_left_after_a_deletion_are_an_error_with_their_cost(account, monkeypatch):
    cluster = create()
    monkeypatch.setattr(MoonCluster, "_delete", classmethod(lambda *given: None))
    with pytest.raises(ProviderFailed, match=r"resources remain.*cluster cluster-1 0.10 \$ an hour") as error:
        cluster.delete()
    assert "docs/moon.md" in error.value.fix
    assert [cluster["cluster"] for cluster in MoonCluster.list()] == ["lab"], "it can be deleted again"


def test_an_api_server_that_does_not_answer_is_explained_by_the_clouds_state(account):
    cluster = create()
    explanation = cluster.explain("connection refused")
    assert (
        isinstance(explanation, ClusterUnreachable)
        and "the Moon reports the state active" in explanation.what
    )
    cluster.delete()
    assert ("release", cluster.title) in account.calls
    assert isinstance(cluster.explain("connection refused"), ClusterNotFound)
    with pytest.raises(ClusterNotFound):
        cluster.scale(3)


def test_resources_are_a_table_with_costs_and_ids(account):
    cluster = create()
    rows = {resource["resource"]: resource for resource in cluster.resources()}
    assert rows["cluster"]["costs"] == "0.10 $ an hour" and rows["nodes"]["id"] == "nodes-1"


def test_gpus_lead_pods_to_their_nodes_and_others_prefer_the_training_nodes(account):
    cluster = MoonCluster("lab", account)
    assert cluster.pod_additions(gpus=1) == {}
    assert "tolerations" not in cluster.pod_additions()
    assert "trainyard/pool" in json.dumps(cluster.pod_additions())


def test_scaling_waits_for_nodes_that_are_ready_and_ends_with_the_clouds_reason(account):
    cluster = create()
    account.shortage = ("there is no capacity in moon-1a", "")
    with pytest.raises(ProviderFailed, match="0 of 3 training nodes are Ready: there is no capacity"):
        cluster.scale(3, confirm=True)
    began, account.shortage = account.clock.now(), ("the account is not verified", "wait for the mail")
    with pytest.raises(ProviderFailed, match="not verified") as error:
        cluster.scale(3, confirm=True)
    assert error.value.fix == "wait for the mail" and account.clock.now() == began
    account.attempts = itertools.repeat("of an earlier call, which has been seen to since")
    with pytest.raises(ProviderFailed, match="no reason") as error:
        cluster.scale(3, confirm=True)
    assert "cluster.scale(0)" in error.value.fix and account.clock.now() - began >= 900


def test_its_end_is_in_what_it_shows_and_urgent_in_the_last_hour(account, caplog, monkeypatch):
    cluster = create(hours=8)
    assert "in 7 h 59 min" in cluster.end_notice() and "WARNING" not in cluster.end_notice()
    described = account.described["lab"]
    for minutes, words in ((59, "WARNING: less than an hour"), (-5, "expired at"), (None, "")):
        end = None if minutes is None else datetime.now(UTC) + timedelta(minutes=minutes)
        account.described["lab"] = replace(described, tags=tags(expires=end))
        assert words in cluster.end_notice()
        caplog.clear()
        cluster.announce_end()
        assert bool(caplog.messages) is (minutes is not None)
    provide(monkeypatch, moon=MoonCluster)
    assert clusters.connect("lab", provider="moon").end_notice() == ""


def test_hours_for_an_existing_cluster_extend_it_or_say_why_not(account, caplog):
    create(hours=4)
    end = account.described["lab"].tags.expires
    with pytest.raises(BadInput, match="needs confirmation"):
        create(hours=10, confirm=False)
    with pytest.raises(BadInput, match="above the budget"):
        create(hours=300, budget=1)
    assert account.described["lab"].tags.expires == end
    create()
    create(hours=2)
    assert account.described["lab"].tags.expires == end
    assert "hours=2 does not shorten that" in caplog.text
    create(hours=10)
    left = account.described["lab"].tags.expires - datetime.now(UTC)
    assert left == pytest.approx(timedelta(hours=10), abs=timedelta(minutes=1))
    account.described["lab"] = replace(account.described["lab"], tags=tags(expires=None))
    with pytest.raises(BadInput, match="does not expire"):
        create(hours=10)
