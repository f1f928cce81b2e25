"""An EKS cluster's images: pushed to its own repositories, or built by CodeBuild where no engine is."""

import shutil
import subprocess
from types import SimpleNamespace

import boto3
import pytest

import kitlib as kit
from clouds.aws.builds import build_parts
from clouds.aws.ecr import EcrRegistry
from clouds.aws.plan import EksPlan
from clouds.aws.session import AwsSession
from clouds.reconciler.resource import ResourceState
from clouds.tags import Tags
from kitlib.container_images import engine_missing
from kitlib.errors import CommandFailed, Interrupted

from ..unit.container_registry import PASSWORD, serve_registry
from .simulated_clock import SimulatedClock

NO_ENGINE = engine_missing() or ("" if shutil.which("docker-registry") else "there is no docker-registry")


@pytest.fixture
def cluster(amazon):
    plan = EksPlan(AwsSession("us-west-2"), Tags("lab", "ada", "self-paced"))
    boto3.client("s3").create_bucket(
        Bucket=plan.bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    return SimpleNamespace(registry=EcrRegistry(plan, clock=SimulatedClock()), plan=plan)


@pytest.fixture
def dockerfile(tmp_path):
    (tmp_path / "greeting.txt").write_text("hello")
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY greeting.txt /greeting.txt\n")
    return file


@pytest.mark.skipif(bool(NO_ENGINE), reason=f"pushing to ECR is NOT TESTED: {NO_ENGINE}")
def test_an_image_is_pushed_to_a_repository_of_the_clusters_own_without_an_aws_program(
    amazon, cluster, dockerfile, tmp_path_factory
):
    with serve_registry(tmp_path_factory.mktemp("registry"), password=PASSWORD) as amazon.registry:
        image = kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=cluster)
    subprocess.run(["docker", "rmi", "--force", image.name], check=True, capture_output=True)
    assert image.name.startswith(f"{amazon.registry or '127.0.0.1'}") and image.digest.startswith("sha256:")
    (made,) = boto3.client("ecr").describe_repositories()["repositories"]
    assert made["repositoryName"] == "trainyard/lab/greeting"
    assert (
        cluster.registry.repositories.describe().state is ResourceState.READY
    )  # so it is found, and deleted, by its tags


def test_without_an_engine_codebuild_builds_and_pushes_and_what_it_used_is_deleted_with_the_cluster(
    amazon, cluster, dockerfile, monkeypatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    image = kit.build_image(
        "trainyard/greeting", dockerfile=dockerfile, cluster=cluster, arguments={"WORD": "two words"}
    )
    assert image.digest.startswith("sha256:") and image.layers == 0
    (begun,) = [each for each in amazon.calls if each.operation == "StartBuild"]
    spec = begun.parameters["buildspecOverride"]
    assert "aws ecr get-login-password --region us-west-2" in spec
    assert "'--build-arg=WORD=two words'" in spec and f"docker push {image.name}" in spec
    sent = begun.parameters["sourceLocationOverride"].partition("/")
    assert sent[0] == cluster.plan.bucket
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=cluster.plan.bucket)
    again = kit.build_image(
        "trainyard/greeting", dockerfile=dockerfile, cluster=cluster, arguments={"WORD": "two words"}
    )
    assert again.reference == image.reference
    assert amazon.actions().count("codebuild:StartBuild") == 1  # what has not changed is not built again
    parts = build_parts(cluster.plan)
    assert [each.describe().state for each in parts] == [ResourceState.READY, ResourceState.READY]
    for each in reversed(parts):
        each.delete()
        each.delete()
    assert not [each for each in amazon.left() if each.service in ("codebuild", "iam")]


def test_a_build_that_fails_says_what_codebuild_said_and_leaves_no_archive(
    amazon, cluster, dockerfile, monkeypatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    phases = [{"phaseStatus": "FAILED", "contexts": [{"message": "COPY failed: no such file"}]}]
    asked = []

    def looked(self, ids):
        asked.append(ids)
        status = "IN_PROGRESS" if len(asked) == 1 else "FAILED"
        return [{"id": ids[0], "buildStatus": status, "currentPhase": "BUILD", "phases": phases}]

    monkeypatch.setattr("moto.codebuild.models.CodeBuildBackend.batch_get_builds", looked)
    with pytest.raises(CommandFailed, match="COPY failed"):
        kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=cluster)
    assert len(asked) == 2 and cluster.registry.clock.now() >= 15  # no sooner was it asked again
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=cluster.plan.bucket)


@pytest.mark.parametrize(
    ("denied", "words"),
    [(False, "was stopped as well"), (True, "may go on, and cost: .*codebuild:StopBuild")],
)
def test_a_build_that_is_stopped_is_stopped_at_codebuild_too_or_told_of(
    amazon, cluster, dockerfile, monkeypatch, denied, words
):
    if denied:
        amazon.deny("codebuild:StopBuild")
    monkeypatch.setenv("PATH", "/nowhere")
    stopped = []

    def looked(self, ids):
        return [{"id": ids[0], "buildStatus": "IN_PROGRESS", "currentPhase": "BUILD"}]

    monkeypatch.setattr("moto.codebuild.models.CodeBuildBackend.batch_get_builds", looked)
    monkeypatch.setattr(
        "moto.codebuild.models.CodeBuildBackend.stop_build", lambda self, build_id: stopped.append(build_id)
    )
    clock = cluster.registry.clock
    wait = clock.receive

    def receive(inbox, *, until, requests):
        if amazon.actions().count("codebuild:BatchGetBuilds") and not requests and not stopped:
            clock.receive = wait
            raise KeyboardInterrupt
        return wait(inbox, until=until, requests=requests)

    clock.receive = receive
    with pytest.raises(Interrupted, match=words):
        kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=cluster)
    assert len(stopped) == (0 if denied else 1)
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=cluster.plan.bucket)
