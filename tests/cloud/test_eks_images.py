"""An EKS cluster's images: built by CodeBuild where no engine is, for a cluster that was really created."""

import pytest

import kitlib as kit
from kitlib.errors import CommandFailed, Interrupted

from .aws import administrator
from .eks_processes import EksProcesses

BUILDS = "moto.codebuild.models.CodeBuildBackend"


@pytest.fixture
def lab(aws, state_home, monkeypatch):
    """A cluster, on a machine without an engine."""
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    made = EksProcesses(aws, monkeypatch.setattr).create()
    monkeypatch.setenv("PATH", "/nowhere")
    return made


def built(lab, dockerfile, **options):
    return kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=lab, **options)


def begun(project="trainyard-lab-builds"):
    return administrator("codebuild").list_builds_for_project(projectName=project)["ids"]


def sources(lab):
    found = administrator("s3").list_objects_v2(Bucket=lab.bucket.removeprefix("s3://"))
    return [content["Key"] for content in found.get("Contents", []) if content["Key"].endswith(".zip")]


@pytest.mark.slow
def test_codebuild_builds_once_what_has_not_changed_and_all_of_it_goes_with_the_cluster(aws, lab, dockerfile):
    image = built(lab, dockerfile, arguments={"WORD": "two words"})
    host = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
    assert image.name.startswith(f"{host}/trainyard/lab/greeting:") and image.digest.startswith("sha256:")
    assert sources(lab) == [] and len(begun()) == 1
    assert built(lab, dockerfile, arguments={"WORD": "two words"}).reference == image.reference
    assert len(begun()) == 1
    lab.delete()
    assert aws.left() == []


def test_a_build_that_fails_says_what_codebuild_said_and_leaves_no_source(aws, lab, dockerfile, monkeypatch):
    phases = [{"phaseStatus": "FAILED", "contexts": [{"message": "COPY failed: no such file"}]}]
    asked = []

    def looked(self, ids):
        asked.append(aws.clock.now())
        status = "IN_PROGRESS" if len(asked) == 1 else "FAILED"
        return [{"id": ids[0], "buildStatus": status, "currentPhase": "BUILD", "phases": phases}]

    monkeypatch.setattr(f"{BUILDS}.batch_get_builds", looked)
    with pytest.raises(CommandFailed, match="COPY failed"):
        built(lab, dockerfile)
    assert asked[1] - asked[0] >= 5  # no sooner was it asked again
    assert sources(lab) == []


def test_a_build_that_is_stopped_is_stopped_at_codebuild_too(aws, lab, dockerfile, monkeypatch):
    stopped = []

    def looked(self, ids):
        return [{"id": ids[0], "buildStatus": "IN_PROGRESS", "currentPhase": "BUILD"}]

    def press(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{BUILDS}.batch_get_builds", looked)
    monkeypatch.setattr(f"{BUILDS}.stop_build", lambda self, build_id: stopped.append(build_id))
    monkeypatch.setattr(lab.clock, "sleep", press)
    with pytest.raises(Interrupted, match="so was the build"):
        built(lab, dockerfile)
    assert len(stopped) == 1 and sources(lab) == []
