"""The course on the provider eks, unchanged: the fake AWS hands out a real cluster, and it really trains.

Simulated time runs by itself here, fast: what takes ten minutes at AWS takes seconds. A stand-in
of BuildKit makes the trainer image before the first notebook.
"""

from contextlib import contextmanager
from pathlib import Path

import pytest

from .aws.machines import files_of, nodes_of
from .aws.server import Backing
from .backing_cluster import BackingCluster, way_out
from .notebook_runs import SECONDS, printed, run_course, stand_in_for_buildkit

DEVICE_PLUGIN = Path(__file__).with_name("device-plugin.yaml")
NAME, REGION, NODES, SPEED = "course", "us-west-2", 4, 60
# Time runs so fast that a cluster of four hours would not see its second notebook: AWS deletes it.
OPTIONS = (f"region={REGION}", "hours=300", "confirm=true")


@pytest.fixture
def aws_that_builds(aws, state_home, tmp_path_factory, monkeypatch):
    """Return the fake, with nodes that have a stand-in of BuildKit."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")  # the notebooks know by the cluster's name where it is
    stand_in_for_buildkit(tmp_path_factory.mktemp("images"))
    return aws


@contextmanager
def real_cluster(aws, *, gpus):
    """Have a real cluster behind the one that is made, whose machines declare GPUs."""
    with (
        BackingCluster(aws.token_webhook(NAME), nodes=NODES + 1, options=("--gpus", str(gpus))) as behind,
        files_of(aws, behind, region=REGION) as files,
        aws.also_at(way_out()) as address,
    ):
        if gpus:  # NVIDIA's is fetched from the internet; the machines report their GPUs without it
            behind.kubectl("apply", "-f", str(DEVICE_PLUGIN))
        # Pods have a role of the cluster's at EKS; here a Secret leads them to the bucket.
        reading = ("AWS_ACCESS_KEY_ID=pod", "AWS_SECRET_ACCESS_KEY=pod", f"AWS_ENDPOINT_URL={address}")
        words = [f"--from-literal={pair}" for pair in (*reading, f"AWS_DEFAULT_REGION={REGION}")]
        behind.kubectl("create", "secret", "generic", "imagenet", *words)
        aws.backings[NAME] = Backing(behind.endpoint, behind.ca, nodes_of(behind))
        yield
        behind.settled()
        assert files.refused == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(("gpus", "machines"), [(0, ()), (1, ("instance_type=g4dn.xlarge",))])
def test_the_notebooks_run_on_eks_from_the_first_to_the_last_and_leave_nothing(
    gpus, machines, aws_that_builds, state_home, tmp_path
):
    aws = aws_that_builds
    aws.clock.run(SPEED)
    words = ["--provider", "eks", "--cluster", NAME, "--nodes", str(NODES)]
    words += [word for option in OPTIONS + machines for word in ("--option", option)]
    run_course(tmp_path, real_cluster(aws, gpus=gpus), *words)
    assert aws.left() == []
    if list(tmp_path.glob("03_*.ipynb")):
        assert "sha256:" in printed(tmp_path, "03", "image = kit.build_image(")
