"""Volumes of every kind, with the objects and tokens of a real API server."""

import asyncio
import base64
import itertools
import os
import stat

import pytest

from localkube.api_client import ApiError
from localkube.kubelet.volumes.object_cache import ObjectCache, TokenManager
from localkube.kubelet.volumes.volume_manager import MountedVolume, VolumeError, VolumeManager, mounts
from localkube.runtime.container_spec import MountSpec

from .watching import until

NUMBERS = itertools.count()


@pytest.fixture
async def namespace(api):
    name = f"volumes-{os.getpid()}-{next(NUMBERS)}"
    await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    # without this account pods are refused
    await until(
        api,
        f"/api/v1/namespaces/{name}/serviceaccounts",
        lambda change, item: item["metadata"]["name"] == "default",
    )
    yield name
    await api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def volumes(api, tmp_path):
    return VolumeManager(lambda _node: api, pods=tmp_path / "pods", allocatable=lambda node: {"cpu": "4"})


@pytest.fixture
def create(api, namespace):
    async def create(kind, name, **body):
        return await api.post(f"/api/v1/namespaces/{namespace}/{kind}", {"metadata": {"name": name}} | body)

    return create


@pytest.fixture
def make_pod(create):
    """Create a pod that no scheduler ever binds, so that tokens can be bound to it."""

    async def make_pod(*specs, name="pod", **container):
        main = {"name": "main", "image": "python", **container}
        spec = {"containers": [main], "volumes": list(specs), "automountServiceAccountToken": False}
        return await create("pods", name, spec=spec)

    return make_pod


async def test_a_configmap_becomes_files_and_follows_changes(api, namespace, create, make_pod, volumes):
    binary = base64.b64encode(bytes(range(256))).decode()
    await create("configmaps", "code", data={"train.py": "print(1)\n"}, binaryData={"blob": binary})
    items = [{"key": "train.py", "path": "src/main.py", "mode": 0o755}, {"key": "blob", "path": "blob"}]
    pod = await make_pod({"name": "v", "configMap": {"name": "code", "items": items, "defaultMode": 0o440}})
    volume = (await volumes.prepare(pod))["v"]
    assert volume.read_only
    assert (volume.source / "src" / "main.py").read_text() == "print(1)\n"
    assert (volume.source / "blob").read_bytes() == bytes(range(256))
    modes = [stat.S_IMODE((volume.source / path).stat().st_mode) for path in ("src/main.py", "blob")]
    assert modes == [0o755, 0o440]

    assert not await volumes.refresh(pod)
    await api.patch(f"/api/v1/namespaces/{namespace}/configmaps/code", {"data": {"train.py": "print(2)\n"}})
    await asyncio.sleep(0.3)  # the time for which one answer serves all pods
    assert await volumes.refresh(pod)
    assert (volume.source / "src" / "main.py").read_text() == "print(2)\n"


async def test_a_missing_source_is_named_and_mounted_once_it_exists(create, make_pod, volumes):
    pod = await make_pod(
        {"name": "c", "configMap": {"name": "later"}},
        {"name": "o", "configMap": {"name": "never", "optional": True}},
    )
    with pytest.raises(VolumeError) as caught:
        await volumes.prepare(pod)
    assert caught.value.reason == "FailedMount"
    assert caught.value.message == 'MountVolume.SetUp failed for volume "c" : configmap "later" not found'
    await create("configmaps", "later", data={"a": "1"})
    ready = await volumes.prepare(pod)
    assert (ready["c"].source / "a").read_text() == "1"
    assert [path.name for path in ready["o"].source.iterdir() if not path.name.startswith("..")] == []


async def test_a_token_is_renewed_when_a_fifth_of_its_life_is_left(api, make_pod):
    pod = await make_pod()
    now = [1_000.0]
    real = TokenManager(lambda _node: api)
    issued = []

    class Requests:
        async def post(self, path, body):
            answer = await api.post(path, body)
            issued.append(answer["status"]["token"])
            answer["status"]["expirationTimestamp"] = "1970-01-01T00:26:40Z"  # 600 s after 1,000
            return answer

    server = Requests()
    tokens = TokenManager(lambda _node: server, clock=lambda: now[0])
    first = await tokens.get(pod, audience="", seconds=600)
    now[0] += 479
    assert await tokens.get(pod, audience="", seconds=600) == first
    now[0] += 2
    await tokens.get(pod, audience="", seconds=600)
    assert len(issued) == 2
    assert (await real.get(pod, audience="", seconds=600)).count(".") == 2


async def test_a_token_still_holds_while_the_api_server_is_away(make_pod, api):
    pod = await make_pod()
    now = [1_000.0]

    class Away:
        def __init__(self):
            self.gone = False

        async def post(self, path, body):
            if self.gone:
                raise ApiError(0, "Unreachable", "connection refused")
            return {"status": {"token": "t", "expirationTimestamp": "1970-01-01T00:26:40Z"}}

    server = Away()
    tokens = TokenManager(lambda _node: server, clock=lambda: now[0])
    assert await tokens.get(pod, audience="", seconds=600) == "t"
    server.gone = True
    now[0] = 1_599
    assert await tokens.get(pod, audience="", seconds=600) == "t"
    now[0] = 1_601
    with pytest.raises(ApiError):
        await tokens.get(pod, audience="", seconds=600)


async def test_pods_that_start_together_share_one_request(api, create, namespace):
    await create("configmaps", "shared", data={"a": "1"})
    requests = []

    class Counting:
        async def get(self, path):
            requests.append(path)
            return await api.get(path)

    objects = ObjectCache(lambda _node: Counting())
    pod = {"metadata": {"namespace": namespace}, "spec": {"nodeName": "node-0"}}
    answers = await asyncio.gather(*(objects.configmap(pod, "shared") for _ in range(200)))
    assert len(requests) == 1
    assert all(answer["data"] == {"a": "1"} for answer in answers)
    assert await objects.secret(pod, "absent") is None


async def test_labels_that_change_reach_the_file(make_pod, volumes):
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    limit = {"containerName": "main", "resource": "limits.cpu"}
    pod = await make_pod(
        {"name": "v", "downwardAPI": {"items": [*items, {"path": "cpu", "resourceFieldRef": limit}]}}
    )
    source = (await volumes.prepare(pod))["v"].source
    assert ((source / "labels").read_text(), (source / "cpu").read_text()) == ("", "4")
    pod["metadata"]["labels"] = {"epoch": "3"}
    assert await volumes.refresh(pod)
    assert (source / "labels").read_text() == 'epoch="3"'


async def test_volumes_that_need_a_driver_are_refused_by_name(make_pod, volumes):
    pod = await make_pod({"name": "v", "gitRepo": {"repository": "r"}})
    with pytest.raises(VolumeError, match="of kind gitRepo need a driver .* use a persistentVolumeClaim"):
        await volumes.prepare(pod)


def test_mounts_bind_outer_directories_first(tmp_path):
    (tmp_path / "data").mkdir()
    container = {
        "volumeMounts": [
            {"name": "v", "mountPath": "/data/runs/", "subPathExpr": "runs/$(RANK)"},
            {"name": "v", "mountPath": "/data", "readOnly": True},
            {"name": "c", "mountPath": "/etc/train.py", "subPath": "train.py"},
        ]
    }
    (tmp_path / "train.py").touch()
    ready = {
        "v": MountedVolume(tmp_path / "data"),
        "c": MountedVolume(tmp_path, read_only=True, managed=True),
    }
    assert mounts(container, ready, environment={"RANK": "3"}) == [
        MountSpec("/data", source=str(tmp_path / "data"), options=("ro",)),
        MountSpec("/data/runs", source=str(tmp_path / "data"), subpaths=("runs/3",)),
        MountSpec("/etc/train.py", source=str(tmp_path), options=("ro", "rro"), subpaths=("train.py",)),
    ]


def test_a_sub_path_that_leads_out_stops_the_container(tmp_path):
    (tmp_path / "trap").symlink_to("/etc")
    container = {"volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": "trap/passwd"}]}
    with pytest.raises(VolumeError, match="leads out of its directory") as caught:
        mounts(container, {"v": MountedVolume(tmp_path)})
    assert caught.value.reason == "CreateContainerConfigError"


def test_a_sub_path_is_not_made_in_a_volume_that_is_read_only(tmp_path):
    container = {"volumeMounts": [{"name": "data", "mountPath": "/x", "subPath": "mine/deep"}]}
    with pytest.raises(VolumeError, match="No such file") as caught:
        mounts(container, {"data": MountedVolume(tmp_path, read_only=True)})
    assert caught.value.reason == "CreateContainerConfigError"
    assert list(tmp_path.iterdir()) == []
    mounts(container, {"data": MountedVolume(tmp_path)})
    assert (tmp_path / "mine" / "deep").is_dir()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o2770, 0o2777])
def test_a_created_sub_path_is_as_writable_as_its_volume(tmp_path, mode):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    container = {"volumeMounts": [{"name": "data", "mountPath": "/x", "subPath": "mine/deep"}]}
    mounts(container, {"data": MountedVolume(tmp_path / "data")})
    created = tmp_path / "data" / "mine"
    assert [path.stat().st_mode & 0o7777 for path in (created, created / "deep")] == [mode, mode]


def test_a_missing_key_as_sub_path_is_not_made_a_directory(tmp_path):
    container = {"volumeMounts": [{"name": "c", "mountPath": "/x", "subPath": "absent"}]}
    with pytest.raises(VolumeError, match="No such file"):
        mounts(container, {"c": MountedVolume(tmp_path, read_only=True, managed=True)})
    assert not (tmp_path / "absent").exists()
