"""Ten random disturbances of an elastic run in a minute; `dev.py soak-elastic` does two hundred in ten."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "soak_elastic", Path(__file__).parents[2] / "tools" / "soak_elastic.py"
)
soak = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(soak)

pytestmark = [pytest.mark.cluster, pytest.mark.namespaces, pytest.mark.slow, pytest.mark.long]


@pytest.mark.timeout(1800)
def test_after_ten_random_disturbances_every_sample_has_counted_once_and_every_loss_is_the_same(
    local_cluster,
):
    said = []
    verdict = soak.soak(local_cluster, seed=7, events=10, seconds=60, say=said.append)
    assert not verdict["problems"], said
    assert verdict["samples"] == verdict["epochs"] * soak.IMAGES
    assert verdict["furthest"] <= soak.EXACT
    assert verdict["done"] >= 5, said
