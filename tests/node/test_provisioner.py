"""Claims get volumes: our provisioner and the real controller manager, together."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from localkube.kubelet.volumes.provisioner import CLAIMS, CLASSES, PROVISIONER, VOLUMES, Provisioner
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager

from .watching import until

NAMESPACE = f"claims-{os.getpid()}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("volumes")


@contextlib.asynccontextmanager
async def running(api, directory):
    task = asyncio.create_task(Provisioner(api, directory=directory).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def provisioner(api, directory):
    async with running(api, directory):
        await until(api, CLASSES, lambda change, item: item["metadata"]["name"] == "standard")
        yield


@pytest.fixture(autouse=True)
async def namespace(api):
    listed = await api.get("/api/v1/namespaces", fieldSelector=f"metadata.name={NAMESPACE}")
    if not listed["items"]:
        await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


@pytest.fixture
def create(api):
    async def create(name, *modes, **spec):
        resources = {"requests": {"storage": "1Gi"}}
        body = {
            "metadata": {"name": name},
            "spec": {"accessModes": list(modes), "resources": resources, **spec},
        }
        return await api.post(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", body)

    return create


def is_bound(name):
    def check(change, item):
        metadata = item["metadata"]
        return metadata["name"] == name and item.get("status", {}).get("phase") == "Bound"

    return check


async def bound(api, name):
    return await until(api, CLAIMS, is_bound(name))


async def volume_of(api, name):
    claim = await bound(api, name)
    return await api.get(f"{VOLUMES}/{claim['spec']['volumeName']}")


async def delete_claim(api, name):
    await api.delete(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}")


def pod_with(name, *, uid="pod-1", **claim):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": name, **claim}}
    return {"metadata": {"name": "p", "namespace": NAMESPACE, "uid": uid}, "spec": {"volumes": [volume]}}


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"])
async def test_a_claim_without_a_class_is_bound_to_a_directory_of_its_own(
    api, provisioner, create, directory, mode
):
    name = mode.lower()
    claim = await create(name, mode)
    volume = await volume_of(api, name)
    path = Path(volume["spec"]["hostPath"]["path"])
    assert path == directory / f"pvc-{claim['metadata']['uid']}"
    assert path.is_dir()
    assert volume["spec"]["accessModes"] == [mode]
    assert volume["spec"]["storageClassName"] == "standard"
    assert "nodeAffinity" not in volume["spec"]
    volumes = VolumeManager(lambda _node: api, pods=directory / "pods")
    ready = (await volumes.prepare(pod_with(name)))["v"]
    assert (ready.source, ready.read_only) == (path, mode == "ReadOnlyMany")
    assert (await volumes.prepare(pod_with(name, readOnly=True)))["v"].read_only


async def test_a_claim_of_one_pod_refuses_a_second_until_the_first_is_gone(
    api, provisioner, create, directory
):
    await create("alone", "ReadWriteOncePod")
    await bound(api, "alone")
    volumes = VolumeManager(lambda _node: api, pods=directory / "pods")
    await volumes.prepare(pod_with("alone", uid="one"))
    await volumes.prepare(pod_with("alone", uid="one"))
    with pytest.raises(VolumeError, match="ReadWriteOncePod and in use by another pod"):
        await volumes.prepare(pod_with("alone", uid="two"))
    await volumes.remove("one")
    await volumes.prepare(pod_with("alone", uid="two"))


async def test_a_deleted_claim_takes_its_directory_with_it(api, provisioner, create):
    await create("gone", "ReadWriteOnce")
    volume = await volume_of(api, "gone")
    path = Path(volume["spec"]["hostPath"]["path"])
    (path / "deep").mkdir()
    (path / "deep" / "file").write_text("data")
    await delete_claim(api, "gone")
    await until(api, VOLUMES, lambda change, item: _deleted(change, item, volume))
    assert not path.exists()


async def test_a_volume_that_is_retained_keeps_its_files(api, provisioner, create):
    await api.post(
        CLASSES,
        {
            "metadata": {"name": "kept"},
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Retain",
            "volumeBindingMode": "Immediate",
        },
    )
    await create("kept", "ReadWriteOnce", storageClassName="kept")
    volume = await volume_of(api, "kept")
    path = Path(volume["spec"]["hostPath"]["path"])
    (path / "file").write_text("data")
    await delete_claim(api, "kept")
    name = volume["metadata"]["name"]
    await until(api, VOLUMES, lambda change, item: _phase(item, name) == "Released")
    assert (path / "file").read_text() == "data"


async def test_a_claim_that_grows_is_recorded_larger(api, provisioner, create):
    await create("grows", "ReadWriteOnce")
    volume = await volume_of(api, "grows")
    larger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/grows"
    await api.patch(path, larger, kind="merge")
    await until(api, CLAIMS, lambda change, item: _capacity(item, "grows") == "2Gi")
    volume = await api.get(f"{VOLUMES}/{volume['metadata']['name']}")
    assert volume["spec"]["capacity"]["storage"] == "2Gi"


async def test_a_claim_waits_for_the_provisioner_and_its_deletion_too(api, create, directory):
    async with running(api, directory):
        await until(api, CLASSES, lambda change, item: item["metadata"]["name"] == "standard")
    claim = await create("early", "ReadWriteOnce")
    async with running(api, directory):
        volume = await volume_of(api, "early")
    await delete_claim(api, "early")
    name = volume["metadata"]["name"]
    await until(api, VOLUMES, lambda change, item: _phase(item, name) == "Released")
    path = directory / f"pvc-{claim['metadata']['uid']}"
    assert path.exists()
    async with running(api, directory):
        await until(api, VOLUMES, lambda change, item: _deleted(change, item, volume))
    assert not path.exists()


async def test_events_tell_what_became_of_a_claim(api, provisioner, create):
    await create("told", "ReadWriteOnce")
    await create("block", "ReadWriteOnce", volumeMode="Block")
    events = f"/api/v1/namespaces/{NAMESPACE}/events"
    event = await until(api, events, lambda change, item: _event(item) == ("told", "ProvisioningSucceeded"))
    assert event["message"].startswith("Successfully provisioned volume pvc-")
    refused = await until(api, events, lambda change, item: _event(item) == ("block", "ProvisioningFailed"))
    assert refused["type"] == "Warning"
    assert "use Filesystem" in refused["message"]


def _deleted(change, item, volume):
    return change == "DELETED" and item["metadata"]["uid"] == volume["metadata"]["uid"]


def _phase(item, name):
    return item["status"]["phase"] if item["metadata"]["name"] == name else None


def _capacity(item, name):
    if item["metadata"]["name"] != name:
        return None
    return item.get("status", {}).get("capacity", {}).get("storage")


def _event(item):
    return item["involvedObject"]["name"], item["reason"]
