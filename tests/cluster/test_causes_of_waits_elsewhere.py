"""The causes of `causes/waits.yaml` on a cluster of an unprivileged user, and in plain mode."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.k8s.client import Kube

from ..node.clusters import list_registry, running_cluster, state_home
from ..node.unprivileged import enter_as_nobody, nobodys
from .provoked import ROWS, check, provoke

SECONDS = 90  # for all rows to be named: they wait beside each other

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def unnamed(kube, rows):
    """Ask why of all rows, again and again; return what is said of those that are not named."""
    left, end = {row["name"]: row for row in rows}, time.monotonic() + SECONDS
    shown = {}
    while left and time.monotonic() < end:
        for name, row in list(left.items()):
            shown[name] = kit.Run(kube.in_namespace(f"w-{name}"), f"w-{name}").why()
            if shown[name].first and shown[name].first.kind == row["kind"]:
                check(shown[name].first, row)
                del left[name]
    return {name: repr(shown[name]) for name in left}


def named_everywhere(cluster, registries, rows):
    kube = Kube(Path(cluster.status["kubeconfig"]), cluster=cluster.name)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda row: provoke(kube, row, registries), rows))
    left = unnamed(kube, rows)
    assert not left, f"{sorted(left)}: {left}"


@pytest.mark.skipif(os.getuid() != 0, reason="root makes the cluster of another user")
def test_the_causes_are_named_on_a_cluster_of_an_unprivileged_user(registries):
    with state_home(Path("/tmp")) as home:
        for address in (*registries.values(), "127.0.0.1:1"):
            list_registry(home, address)
        os.chown(home, 65534, 65534)
        enter = enter_as_nobody(home)
        with running_cluster("--nodes", "2", home=home, enter=enter, **nobodys(home)) as cluster:
            # a user without further ids has each number that a pod asks for
            named_everywhere(cluster, registries, [row for row in ROWS if row["name"] != "user-id"])


def test_the_causes_are_named_in_plain_mode(registries):
    with state_home(Path("/tmp")) as home:
        for address in (*registries.values(), "127.0.0.1:1"):
            list_registry(home, address)
        with running_cluster("--nodes", "2", "--mode", "plain", home=home) as cluster:
            named_everywhere(cluster, registries, [row for row in ROWS if row.get("plain", True)])
