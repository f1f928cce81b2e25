"""What Google Cloud refuses is told in the kit's words: what, on what, and what to do; from real client
libraries.
"""

import contextlib
import json
import os
import subprocess

import pytest
from google.auth.credentials import AnonymousCredentials

from kitlib.errors import BadInput
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke import parts, token
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.spec import ClusterInfo
from trainyard_kit.clouds.tags import Tags

from .google import storage
from .google.api_errors import permission_denied, service_disabled, stockout
from .google.fake import NUMBER, PROJECT

LAB = f"projects/{PROJECT}/locations/us-central1-c/clusters/lab"


@pytest.fixture
def session(google):
    return GcpSession(PROJECT, "us-central1-c")


def refusal(call, *arguments, **parameters) -> GcpError:
    with pytest.raises(GcpError) as caught:
        call(*arguments, **parameters)
    return caught.value


def test_a_missing_resource_is_none(session):
    assert session.find("container", LAB) is None
    assert session.find("compute", f"projects/{PROJECT}/global/networks/lab") is None


@pytest.mark.parametrize("api", ["container", "compute"])
def test_a_denied_permission_is_named_with_the_role_that_gives_it(google, session, api):
    google.fail(f"{api}.*", 1, permission_denied("compute.networks.create", f"projects/{PROJECT}"))
    error = refusal(request, session, api)
    assert (error.reason, error.transient) == (ErrorReason.DENIED, False)
    assert error.what == "this user lacks the permission compute.networks.create"
    assert "roles/compute.networkAdmin" in error.fix
    assert f"gcloud projects add-iam-policy-binding {PROJECT}" in error.fix


@pytest.mark.parametrize("api", ["container", "compute"])
def test_an_api_that_is_not_enabled_comes_with_the_line_and_the_link_that_enable_it(google, session, api):
    google.fail(f"{api}.*", 1, service_disabled(api, "Some API", PROJECT))
    error = refusal(request, session, api)
    assert error.reason is ErrorReason.DISABLED
    assert f"gcloud services enable {api}.googleapis.com --project={PROJECT}" in error.fix
    assert f"https://console.cloud.google.com/apis/library/{api}.googleapis.com" in error.fix


@pytest.mark.parametrize("api", ["container", "compute"])
def test_a_network_that_fails_once_is_not_noticed_and_one_that_is_gone_passes_maybe(google, session, api):
    google.cut(1, "before", calls=1)
    request(session, api)
    google.cut(1, "before")
    error = refusal(request, session, api)
    assert error.transient and error.reason in (ErrorReason.NETWORK, ErrorReason.FAULT)


def test_a_project_that_is_not_there_is_said_to_be_so(session):
    missing, path = GcpSession("no-such-project", "us-central1-c"), LAB.replace(PROJECT, "no-such-project")
    error = refusal(missing.request, "GET", "container", path)
    assert error.reason is ErrorReason.PROJECT
    assert "gcloud projects list" in error.fix


SAID = [
    (403, "quotaExceeded", "Quota 'NVIDIA_T4_GPUS' exceeded. Limit: 0.0", "quota", "NVIDIA_T4_GPUS"),
    (403, "", 'Insufficient regional quota: resource "CPUS": is short', "quota", "of CPUS"),
    (400, "8", stockout("us-central1-c").message, "stockout", "another zone"),
    (400, "FAILED_PRECONDITION", "Operation x is currently creating cluster lab.", "busy", "minute"),
    (400, "", "Billing must be enabled for activation of service(s) x", "billing", "linkedaccount"),
    (401, "UNAUTHENTICATED", "Invalid credentials.", "credentials", "application-default login"),
    (503, "UNAVAILABLE", "Getting metadata from plugin failed: reauthenticate", "credentials", "login"),
    (412, "", "violates constraint 'constraints/gcp.resourceLocations'", "policy", "exception"),
    (403, "", "Request is prohibited by organization's policy.", "policy", "organisation"),
    (400, "", "The request has violated one or more Org Policies.", "policy", "exception"),
    (403, "", "Compute API has not been used in project 12 before", "disabled", "services enable"),
    (400, "", "Users in the policy do not belong to a permitted customer.", "policy", "exception"),
    (400, "", "Service account creation is not allowed on this project.", "policy", "exception"),
    (403, "", "Permission 'file.instances.list' denied on resource", "denied", "=roles/file.editor"),
    (403, "", "The caller does not have permission", "denied", "docs/gke.md"),
    (409, "ABORTED", "There were concurrent policy changes.", "busy", "minute"),
    (429, "RESOURCE_EXHAUSTED", "Too many requests.", "busy", "minute"),
]


@pytest.mark.parametrize(("status", "code", "said", "why", "fix"), SAID, ids=[row[2][:30] for row in SAID])
def test_each_kind_of_refusal_says_what_to_do(status, code, said, why, fix):
    error = to_error(ErrorReply(status, code, said), "container: create_cluster lab", PROJECT)
    assert error.reason == why
    assert fix in error.fix and "roles/editor" not in error.fix


@pytest.mark.parametrize("api", ["container", "compute"])
def test_nothing_is_believed_to_be_gone_because_another_projects_api_is_disabled(google, session, api):
    """A user's requests may count against gcloud's own project, which has no API enabled."""
    google.fail(f"{api}.*", 1, service_disabled(api, "Some API", "764086051850"), times=9)
    for look in (look_for, look_for_all):
        error = refusal(look, session, api)
        assert error.reason is ErrorReason.DISABLED and "764086051850" in error.what
    google.clear_faults()
    for consumer in (PROJECT, NUMBER):
        google.fail(f"{api}.*", 1, service_disabled(api, "Some API", consumer), times=9)
        assert look_for(session, api) is None and look_for_all(session, api) in (None, [])
        google.clear_faults()


def look_for(session, api):
    if api == "container":
        return session.find("container", LAB)
    return session.find("compute", f"projects/{PROJECT}/global/networks/default")


def look_for_all(session, api):
    if api == "container":
        return parts.clusters_of(session) or None
    return list(session.paginate("compute", f"projects/{PROJECT}/global/networks", "items"))


def test_requests_of_a_user_count_against_the_clusters_project(google, monkeypatch, tmp_path):
    secrets = {"client_id": "x", "client_secret": "y", "refresh_token": "z"}
    user = {"type": "authorized_user", "quota_project_id": "of-gcloud", **secrets}
    (file := tmp_path / "user.json").write_text(json.dumps(user))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert GcpSession(PROJECT).credentials.quota_project_id == PROJECT


def test_without_a_project_or_credentials_it_says_how_to_get_them(google, monkeypatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(BadInput, match="no project is given"):
        GcpSession()
    error = refusal(lambda: GcpSession(PROJECT).credentials)
    assert error.reason is ErrorReason.CREDENTIALS
    assert "gcloud auth application-default login" in error.fix


def test_a_token_for_the_cluster_is_printed_as_kubectl_wants_it(google, tmp_path):
    cluster = GkeCluster("lab", GcpSession(PROJECT))
    user = cluster._kubeconfig(ClusterInfo(Tags("lab", "", "")))["users"][0]["user"]["exec"]
    program = [user["command"], "-X", "importtime", *user["args"]]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        program, env=environment | {"CLOUDSDK_AUTH_ACCESS_TOKEN": "secret"}, capture_output=True, text=True
    )
    assert '"token": "secret"' in done.stdout
    assert "kitlib" not in done.stderr, "kubectl starts it often, and importing the kit takes long"
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "gcloud auth application-default login" in done.stderr
    assert "Traceback" not in done.stderr


def request(session, api):
    if api == "container":
        return session.request("GET", "container", f"projects/{PROJECT}/locations/-/clusters")
    return session.request("GET", "compute", f"projects/{PROJECT}/zones/us-central1-c")


def test_a_token_for_the_cluster_has_the_scope_by_which_kubernetes_knows_its_user(google, monkeypatch):
    scopes = []

    def default(*, scopes=None, requested=scopes, **_):
        requested.append(set(scopes))
        return AnonymousCredentials(), PROJECT

    monkeypatch.setattr("google.auth.default", default)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    assert GcpSession().credentials is not None
    with contextlib.suppress(Exception):  # nobody has no token
        token.access_token()
    assert len(scopes) == 3
    root = "https://www.googleapis.com/auth/"
    assert all(scope == {f"{root}cloud-platform", f"{root}userinfo.email"} for scope in scopes)


def test_a_bucket_of_objects_with_odd_names_is_emptied(google):
    session = GcpSession(PROJECT, "us-central1-c")
    session.request("POST", "storage", "b", {"name": "many", "location": "US"}, project=PROJECT)
    for number in range(40):
        storage.put(google.rest, "many", f"train/n{number}/bild ä+%2F&.png", b"it")
    session.empty_bucket("many")
    assert list(session.paginate("storage", "b/many/o", "items")) == []
