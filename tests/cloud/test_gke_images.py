"""A GKE cluster's images: pushed to its own repository, or built by Cloud Build where no engine is."""

import re
import shutil
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

import kitlib as kit
from clouds.google.artifact_registry import ArtifactRegistry
from clouds.google.client_errors import ErrorReason, GcpError
from clouds.google.machines import MachinePool
from clouds.google.registry import BuildsPush
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, discover, resources
from clouds.google.storage import BuildsFiles, bucket_name
from clouds.reconciler import reconcile
from clouds.reconciler.resource import ResourceState
from clouds.tags import Tags
from kitlib.container_images import engine_missing
from kitlib.errors import CommandFailed, Interrupted

from ..unit.container_registry import PASSWORD, serve_registry
from .google.api_errors import LineCut, OperationFailure, permission_denied
from .google.fake import PROJECT
from .google.images import BYTES
from .simulated_clock import SimulatedClock

NO_ENGINE = engine_missing() or ("" if shutil.which("docker-registry") else "there is no docker-registry")
END = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
TAGS = Tags("lab", "ada", "spring", END)
CREATE = "cloudbuild.projects.locations.builds.create"
GET = "cloudbuild.projects.locations.builds.get"


@pytest.fixture
def clock(google):
    return SimulatedClock(passed=google.clock.advance)


@pytest.fixture
def cluster(google, clock):
    """What of a cluster its images touch: there, without the cluster itself, which would be the slow part."""
    session = GcpSession(PROJECT, "us-central1-c")
    plan = GkePlan(session, TAGS, MachinePool.of(nodes=1))
    wanted = ("account expiry", "account nodes", "bucket", "repository", "access to the repository")
    parts = [each for each in resources(plan) if each.name in wanted]
    reconcile.bring_up(parts, title="lab", resume="again", clock=clock)
    return SimpleNamespace(registry=ArtifactRegistry(session, TAGS, clock=clock), session=session)


@pytest.fixture
def dockerfile(tmp_path):
    (tmp_path / "greeting.txt").write_text("hello")
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY greeting.txt /greeting.txt\n")
    return file


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")


def built(cluster, dockerfile, **options):
    return kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=cluster, **options)


def calls(google, method):
    return [each for each in google.calls if each.method == method]


def builds_of(google):
    return [each.body for each in google.rest.store.every("cloudbuild") if "steps" in each.body]


def objects(google):
    return [each.body["name"] for each in google.rest.store.every("storage") if "/o/" in each.path]


@pytest.mark.skipif(bool(NO_ENGINE), reason=f"pushing to Artifact Registry is NOT TESTED: {NO_ENGINE}")
def test_an_image_is_pushed_to_the_clusters_repository_without_gcloud_and_not_built_twice(
    google, cluster, dockerfile, tmp_path_factory, monkeypatch
):
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", PASSWORD)
    with serve_registry(tmp_path_factory.mktemp("registry"), password=PASSWORD) as address:
        google.registry(address, f"oauth2accesstoken:{PASSWORD}")
        image = built(cluster, dockerfile)
        subprocess.run(["docker", "rmi", "--force", image.name], check=True, capture_output=True)
        again = built(cluster, dockerfile)
    assert image.name.startswith(f"{address}/{PROJECT}/trainyard-lab/greeting:")
    assert (again.reference, again.layers) == (image.reference, 0)
    assert image.digest.startswith("sha256:") and not calls(google, CREATE)


def test_without_an_engine_cloud_build_builds_and_pushes_and_what_it_used_goes_with_the_cluster(
    google, cluster, clock, dockerfile, no_engine
):
    before = clock.now()
    image = built(cluster, dockerfile, arguments={"WORD": "two words, 5 $"})
    (made,) = builds_of(google)
    assert made["serviceAccount"].startswith(f"projects/{PROJECT}/serviceAccounts/ty-builds-lab-")
    assert made["images"] == [image.name] and made["options"]["logging"] == "GCS_ONLY"
    assert made["steps"][0]["args"][-2:] == ["--build-arg=WORD=two words, 5 $$", "."]
    assert image.name.startswith(f"us-central1-docker.pkg.dev/{PROJECT}/trainyard-lab/greeting:")
    assert image.digest == made["results"]["images"][0]["digest"] and image.bytes == BYTES
    assert [each for each in objects(google) if each.endswith(".zip")] == []  # the source is gone …
    assert any(re.search(r"log-.*\.txt$", each) for each in objects(google))  # … its log stays
    assert len(calls(google, GET)) <= (clock.now() - before) / 15 + 1

    assert built(cluster, dockerfile, arguments={"WORD": "two words, 5 $"}).reference == image.reference
    assert len(builds_of(google)) == 1  # what has not changed is not built again

    policy = google.rest.store.get("cloudresourcemanager", f"projects/{PROJECT}").policy
    assert "ty-builds" not in str(policy)  # it may do nothing but with the cluster's own
    found = discover(cluster.session, "lab")
    assert "account builds" in {each.name for each in found}
    reconcile.take_down(found, title="lab", resume="again", clock=clock)
    assert google.left() == []


def test_a_build_that_fails_says_what_it_wrote_last_and_leaves_no_source(
    google, cluster, dockerfile, no_engine
):
    words = "COPY failed: file not found in build context: stat greeting.txt: file does not exist"
    google.fail(CREATE, 1, OperationFailure("FAILED_PRECONDITION", words))
    with pytest.raises(CommandFailed, match="COPY failed") as caught:
        built(cluster, dockerfile)
    assert "Step 1/2" in caught.value.what and "console.cloud.google.com/cloud-build" in caught.value.fix
    assert [each for each in objects(google) if each.endswith(".zip")] == []


def test_a_build_that_is_stopped_is_cancelled_and_leaves_no_source(
    google, cluster, clock, dockerfile, no_engine, monkeypatch
):
    advance = clock.advance

    def press(seconds):
        if any(each["status"] == "WORKING" for each in builds_of(google)):
            raise KeyboardInterrupt
        advance(seconds)

    monkeypatch.setattr(clock, "advance", press)
    with pytest.raises(Interrupted, match="was cancelled"):
        built(cluster, dockerfile)
    assert [each["status"] for each in builds_of(google)] == ["CANCELLED"]
    assert [each for each in objects(google) if each.endswith(".zip")] == []
    google.clock.advance(600)
    assert [each["status"] for each in builds_of(google)] == ["CANCELLED"]


def test_of_a_request_that_was_sent_again_because_no_answer_came_one_build_stays(
    google, cluster, dockerfile, no_engine
):
    create = google.rest._specials[CREATE]

    def unheard(rest, request):
        answer = create(rest, request)
        if len(builds_of(google)) == 1:
            raise LineCut
        return answer

    google.rest._specials[CREATE] = unheard
    image = built(cluster, dockerfile)
    assert [each["status"] for each in builds_of(google)] == ["CANCELLED", "SUCCESS"] and image.digest


def test_a_build_that_was_begun_unheard_is_found_again(google, cluster, dockerfile, no_engine):
    create = google.rest._specials[CREATE]

    def unheard(rest, request):
        create(rest, request)
        google.cut(1, "before", calls=7)  # httplib2 and the kit send it again, and nothing comes through
        raise LineCut

    google.rest._specials[CREATE] = unheard
    assert built(cluster, dockerfile).digest
    assert [each["status"] for each in builds_of(google)] == ["SUCCESS"]


def test_who_may_not_build_is_told_which_role_is_missing(google, cluster, dockerfile, no_engine):
    denied = permission_denied("cloudbuild.builds.create", f"projects/{PROJECT}")
    google.fail(CREATE, 1, denied)
    with pytest.raises(GcpError) as caught:
        built(cluster, dockerfile)
    assert caught.value.why is ErrorReason.DENIED
    assert "roles/cloudbuild.builds.editor" in caught.value.fix
    assert [each for each in objects(google) if each.endswith(".zip")] == []


def test_a_repository_that_somebody_deleted_is_made_again(google, cluster, clock, dockerfile, no_engine):
    where = cluster.registry.repository.id
    cluster.session.rest("artifactregistry", "projects.locations.repositories.delete", name=where)
    clock.advance(60)
    image = kit.build_image("trainyard/deep/down", dockerfile=dockerfile, cluster=cluster)
    assert image.digest and cluster.registry.repository.describe().state is ResourceState.READY


def test_what_others_may_do_with_a_thing_stays_as_it_was(google, cluster, dockerfile, no_engine):
    bucket = bucket_name(PROJECT, "lab")
    theirs = {"role": "roles/storage.objectViewer", "members": ["user:ada@example.com"]}
    google.rest.store.get("storage", f"b/{bucket}").policy["bindings"] = [theirs]
    built(cluster, dockerfile)
    bindings = google.rest.store.get("storage", f"b/{bucket}").policy["bindings"]
    assert theirs in bindings and len(bindings) == 3
    for kind in (BuildsFiles, BuildsPush):
        assert kind(cluster.session, TAGS).describe().state is ResourceState.READY
