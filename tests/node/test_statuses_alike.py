"""Local nodes report of pods what Kubernetes' own kubelet reports, as `make test-kubelet` has recorded it."""

import json

import pytest

from ..kubelet import statuses
from .clusters import running_cluster, state_home

RECORDED = json.loads(statuses.RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported(request):
    with (
        state_home(request.config.cache.mkdir("lab")) as home,
        running_cluster("--nodes", "1", home=home) as cluster,
    ):
        yield statuses.look(cluster.kubectl)


@pytest.mark.parametrize("name", RECORDED)
def test_a_status_is_the_kubelets(reported, name):
    assert reported[name] == RECORDED[name]
