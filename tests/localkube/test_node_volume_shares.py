"""How much room the ConfigMaps, Secrets and tokens of a namespace have."""

import pytest

from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.volumes.projected import VolumeFile
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager
from localkube.kubelet.volumes.volume_shares import DISK, MEMORY, VolumeShares, size_of

MIB = 1 << 20


@pytest.fixture
def shares():
    return VolumeShares({MEMORY: 64 * MIB, DISK: 640 * MIB})


def test_a_small_file_takes_a_page_and_what_is_noted_of_it():
    assert size_of({"a": VolumeFile(b"x"), "b": VolumeFile(b"")}) == 3 * 4096
    assert size_of({"a": VolumeFile(bytes(4097))}) == 3 * 4096
    assert size_of({"a/b/c": VolumeFile(b"x")}) == 4 * 4096


def test_a_namespace_has_an_eighth_and_the_message_says_what_it_has(shares):
    shares.reserve("a", {"v": (MEMORY, 6 * MIB)}, namespace="ada")
    with pytest.raises(ConfigError, match="no space left on device: .* need 3Mi .* ada have 6Mi and may"):
        shares.reserve("b", {"v": (MEMORY, 3 * MIB)}, namespace="ada")
    shares.reserve("b", {"v": (DISK, 3 * MIB)}, namespace="ada")
    shares.reserve("c", {"v": (MEMORY, 8 * MIB)}, namespace="bob")
    assert shares.used(MEMORY) == {"ada": 6 * MIB, "bob": 8 * MIB}


def test_room_returns_with_the_pod_and_a_volume_counts_once(shares):
    for size in (6, 7, 8):
        shares.reserve("a", {"v": (MEMORY, size * MIB)}, namespace="ada")
    shares.forget("a")
    shares.reserve("b", {"v": (MEMORY, 8 * MIB)}, namespace="ada")


def test_many_volumes_of_many_pods_are_counted_together(shares):
    """Two hundred and sixty times one object, and pods with a little each."""
    with pytest.raises(ConfigError):
        shares.reserve("a", {f"v{n}": (MEMORY, MIB) for n in range(260)}, namespace="ada")
    assert shares.used(MEMORY) == {}
    for number in range(8):
        shares.reserve(f"p{number}", {"v": (MEMORY, MIB)}, namespace="ada")
    with pytest.raises(ConfigError):
        shares.reserve("p9", {"v": (MEMORY, MIB)}, namespace="ada")


def test_all_namespaces_together_leave_room_to_rewrite_a_volume(shares):
    for number in range(7):
        shares.reserve("p", {f"v{number}": (MEMORY, 8 * MIB)}, namespace=f"n{number}")
    with pytest.raises(ConfigError, match="those of all namespaces have 56Mi of 64Mi"):
        shares.reserve("q", {"v": (MEMORY, MIB)}, namespace="late")


async def test_an_object_is_read_once_for_all_volumes_of_a_pod_however_long_that_takes(tmp_path):
    reads = []

    class Objects:
        async def secret(self, pod, name):
            reads.append(name)
            return {"data": {"k": "eA=="}}

    volumes = [{"name": f"v{number}", "secret": {"secretName": "large"}} for number in range(9)]
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"volumes": volumes, "containers": []},
    }
    manager = VolumeManager(lambda node: None, pods=tmp_path, objects=Objects())
    assert len(await manager.prepare(pod)) == 9
    assert len(reads) <= 4  # those that begin together


async def test_a_projection_whose_kind_the_api_server_has_dropped_is_refused_in_words(tmp_path):
    volumes = [{"name": "v", "projected": {"sources": [{}]}}]
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"volumes": volumes}}
    with pytest.raises(VolumeError, match="kind unknown are not available"):
        await VolumeManager(lambda node: None, pods=tmp_path).prepare(pod)
