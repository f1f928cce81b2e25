"""A database that was filled to its quota takes writes again when there is space."""

import asyncio
from dataclasses import replace

import pytest

from localkube.api_client import ApiError
from localkube.controlplane import binaries
from localkube.controlplane.components import ETCD_SOCKET
from localkube.controlplane.etcd_maintenance import EtcdMaintenance
from localkube.runtime.client import short_name

from ..node.bare_control_plane import bare

QUOTA = 32 << 20
LARGE = "x" * 900_000


def with_small_quota(component):
    words = (w for w in component.argv if not w.startswith("--quota-backend-bytes"))
    argv = (*words, f"--quota-backend-bytes={QUOTA}")
    return replace(component, argv=argv) if component.name == "etcd" else component


@pytest.fixture
def running(tmp_path):
    control_plane = binaries.obtain(report=lambda text: None)
    components = ("etcd", "kube-apiserver")
    with bare(tmp_path, control_plane, components=components, change=with_small_quota) as running:
        yield running


def create(running, name):
    running.run("-n", "kube-public", "create", "configmap", name, f"--from-literal=a={LARGE[:100_000]}")


def maintain(running):
    async def run():
        with short_name(running.paths.root / ETCD_SOCKET) as path:
            async with EtcdMaintenance(path, quota=QUOTA) as etcd:
                await etcd.reclaim_space()

    asyncio.run(run())


def fill(running):
    """Write until the database is full; return the names of what was written."""

    async def write():
        names = []
        async with running.api() as api:
            for number in range(200):
                name = f"large-{number}"
                names.append(name)  # etcd stores also the write that it refuses first
                body = {"metadata": {"name": name}, "data": {"a": LARGE}}
                try:
                    await api.post("/api/v1/namespaces/kube-public/configmaps", body)
                except ApiError as error:
                    assert "database space exceeded" in str(error)
                    return names
        raise AssertionError("it never becomes full")

    return asyncio.run(write())


def delete(running, names):
    async def remove():
        async with running.api() as api:
            for name in names:
                try:
                    await api.delete(f"/api/v1/namespaces/kube-public/configmaps/{name}")
                except ApiError as error:
                    assert error.status == 404

    asyncio.run(remove())


def test_etcd_takes_writes_again_once_what_filled_it_was_deleted(running):
    names = fill(running)
    delete(running, names)
    with pytest.raises(AssertionError, match="database space exceeded"):
        create(running, "refused")
    maintain(running)
    create(running, "accepted")
    fill(running)  # as much fits in as before, so the file was given back to the disk
