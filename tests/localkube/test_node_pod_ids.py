"""The users and groups of pods on the host."""

import pytest

from localkube.host import IdRanges
from localkube.kubelet.containers.pod_ids import PodIds
from localkube.runtime.client import RuntimeCallError
from localkube.runtime.container_spec import LinuxIdMapping

FEW = IdRanges(first=1000, size=10, count=3, idmap=True)


def test_each_pod_has_a_range_that_a_kubelet_finds_again_after_its_restart(tmp_path):
    ids = PodIds(FEW, pods=tmp_path)
    ranges = {uid: ids.of(uid) for uid in ("a", "b", "c")}
    assert {span.host_id for span in ranges.values()} == {1000, 1010, 1020}
    assert {span.size for span in ranges.values()} == {10}
    again = PodIds(FEW, pods=tmp_path)
    assert {uid: again.of(uid) for uid in ranges} == ranges


def test_a_range_is_free_again_when_its_pod_has_gone(tmp_path):
    ids = PodIds(FEW, pods=tmp_path)
    ranges = [ids.of(uid) for uid in ("a", "b", "c")]
    with pytest.raises(RuntimeCallError, match="all 3 ranges of user ids are in use"):
        ids.of("d")
    ids.release("b")
    assert ids.of("d") == ranges[1]


def test_pods_share_an_id_range_without_idmapped_mounts(tmp_path):
    shared = PodIds(IdRanges(first=1000, size=10), pods=tmp_path)
    assert shared.of("a") == shared.of("b") == LinuxIdMapping(0, 1000, 10)
    assert PodIds(pods=tmp_path).of("a") == LinuxIdMapping(0, 0, 1)
    assert not list(tmp_path.iterdir())
