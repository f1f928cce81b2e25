"""The course on the provider eks, unchanged: the fake Amazon hands out a real cluster, and it really trains.

Simulated time runs by itself here, fast: what takes ten minutes at Amazon takes seconds. With an engine and
a registry on this machine, the image of notebook 03 is pushed to that; without, CodeBuild makes it.
"""

from contextlib import contextmanager

import pytest

from .aws.machines import files_of, nodes_of
from .backing_cluster import BackingCluster
from .notebook_runs import SECONDS, registry_or_none, run_course, said

NAME, REGION, NODES, SPEED = "course", "us-west-2", 4, 60
# Time runs so fast that a cluster of four hours would not see its second notebook: AWS deletes it.
OPTIONS = (f"region={REGION}", "hours=300", "confirm=true")


@pytest.fixture
def amazon_with_images(amazon, tmp_path_factory, monkeypatch):
    """Return the fake, whose ECR is a real registry where something can be pushed to it."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")  # the notebooks know by the cluster's name where it is
    with registry_or_none(tmp_path_factory.mktemp("images"), monkeypatch) as amazon.registry:
        yield amazon


@contextmanager
def real_cluster(amazon):
    """Have a real cluster behind the one that is made."""
    with (
        BackingCluster(amazon.token_webhook(NAME), nodes=NODES + 1) as behind,
        files_of(amazon, behind, region=REGION) as files,
    ):
        amazon.backing(NAME, endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
        yield
        behind.settled()
        assert files.refused == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
def test_the_notebooks_run_on_eks_from_the_first_to_the_last_and_leave_nothing(
    amazon_with_images, state_home, tmp_path
):
    amazon = amazon_with_images
    amazon.clock.run(SPEED)
    words = ["--provider", "eks", "--cluster", NAME, "--nodes", str(NODES)]
    words += [word for each in OPTIONS for word in ("--option", each)]
    run_course(tmp_path, real_cluster(amazon), *words)
    assert amazon.left() == []
    if list(tmp_path.glob("03_*.ipynb")):
        assert "sha256:" in said(tmp_path, "03", "image = kit.build_image(")
