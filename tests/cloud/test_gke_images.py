"""A GKE cluster's images: built by Cloud Build where no engine is, for a cluster that was really created."""

import re

import pytest

import kitlib as kit
from kitlib.errors import CommandFailed, Interrupted
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError

from .gke_lifecycle import GkeProcesses
from .google.api_errors import LineCut, OperationFailure, permission_denied
from .google.fake import PROJECT

CREATE = "cloudbuild.projects.locations.builds.create"


@pytest.fixture
def lab(google, clock, state_home, monkeypatch):
    """A cluster, on a machine without an engine."""
    made = GkeProcesses(google, monkeypatch.setattr).create()
    monkeypatch.setenv("PATH", "/nowhere")
    return made


def built(lab, dockerfile, **options):
    return kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=lab, **options)


def builds_of(google):
    return [item.body for item in google.rest.store.every("cloudbuild") if "steps" in item.body]


def files(google, end):
    names = [item.body["name"] for item in google.rest.store.every("storage") if "/o/" in item.path]
    return [name for name in names if re.search(end, name)]


def test_cloud_build_builds_once_what_has_not_changed_and_all_of_it_goes_with_the_cluster(
    google, lab, dockerfile
):
    image = built(lab, dockerfile, arguments={"WORD": "two words, 5 $"})
    (made,) = builds_of(google)
    assert made["serviceAccount"].startswith(f"projects/{PROJECT}/serviceAccounts/ty-builds-lab-")
    assert made["steps"][0]["args"][-2:] == ["--build-arg=WORD=two words, 5 $$", "."]
    assert image.name.startswith(f"us-central1-docker.pkg.dev/{PROJECT}/trainyard-lab/greeting:")
    assert image.digest == made["results"]["images"][0]["digest"] and image.bytes > 0
    assert not files(google, r"\.zip$") and files(google, r"log-.*\.txt$")
    assert built(lab, dockerfile, arguments={"WORD": "two words, 5 $"}).reference == image.reference
    assert len(builds_of(google)) == 1
    lab.delete()
    assert google.left() == []


def test_a_build_that_fails_says_what_it_wrote_last_and_leaves_no_source(google, lab, dockerfile):
    words = "COPY failed: file not found in build context: stat greeting.txt: file does not exist"
    google.fail(CREATE, 1, OperationFailure("FAILED_PRECONDITION", words))
    with pytest.raises(CommandFailed, match="COPY failed") as caught:
        built(lab, dockerfile)
    assert "console.cloud.google.com/cloud-build" in caught.value.fix
    assert not files(google, r"\.zip$")


def test_a_build_that_is_stopped_is_cancelled_and_leaves_no_source(google, lab, dockerfile, monkeypatch):
    sleep = lab.clock.sleep

    def press(seconds):
        if any(build["status"] in ("QUEUED", "WORKING") for build in builds_of(google)):
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(lab.clock, "sleep", press)
    with pytest.raises(Interrupted, match="was cancelled"):
        built(lab, dockerfile)
    assert [build["status"] for build in builds_of(google)] == ["CANCELLED"]
    assert not files(google, r"\.zip$")


def test_rights_that_cloud_build_does_not_know_yet_are_waited_for(google, lab, dockerfile):
    google.fail(CREATE, 1, permission_denied("cloudbuild.builds.create", f"projects/{PROJECT}"), times=5)
    assert built(lab, dockerfile).digest


def test_who_may_not_build_is_told_which_role_is_missing(google, lab, dockerfile):
    denied = permission_denied("cloudbuild.builds.create", f"projects/{PROJECT}")
    google.fail(CREATE, 1, denied, times=1000)
    with pytest.raises(GcpError) as caught:
        built(lab, dockerfile)
    assert caught.value.why is ErrorReason.DENIED
    assert "roles/cloudbuild.builds.editor" in caught.value.fix
    assert not files(google, r"\.zip$")


def test_a_build_that_lacks_its_new_rights_is_begun_again_for_ten_minutes(google, lab, dockerfile):
    google.delay("policy", 10**6)
    began = google.clock.date()
    with pytest.raises(CommandFailed, match="denied"):
        built(lab, dockerfile)
    assert 600 <= (google.clock.date() - began).total_seconds() < 900
    google.delay("policy", (google.clock.date() - began).total_seconds() + 60)
    assert built(lab, dockerfile).digest


def test_of_a_request_that_was_sent_again_because_no_answer_came_one_build_stays(google, lab, dockerfile):
    create = google.rest.specials[CREATE]

    def unheard(rest, request):
        answer = create(rest, request)
        if len(builds_of(google)) == 1:
            raise LineCut
        return answer

    google.rest.specials[CREATE] = unheard
    assert built(lab, dockerfile).digest
    assert [build["status"] for build in builds_of(google)] == ["CANCELLED", "SUCCESS"]
