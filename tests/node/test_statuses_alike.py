"""Local nodes report of pods what Kubernetes' own kubelet reports, as `make test-kubelet` has recorded it."""

import json

import pytest

from ..kubelet import statuses

RECORDED = json.loads(statuses.RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported(cluster):
    return statuses.look(cluster.kubectl)


@pytest.mark.parametrize("name", RECORDED)
def test_a_status_is_the_kubelets(reported, name):
    assert reported[name] == RECORDED[name]
