"""What goes wrong at Google Cloud, said so that somebody can fix it: by real credentials, and by the fake.

Denied rights, disabled APIs, quotas, typos and names that are taken are in `test_gke_session` and
`test_gke_preflight`.
"""

import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import google.auth.exceptions as auth
import googleapiclient
import pytest
import requests

from kitlib.clusters.shape import Shape
from trainyard_kit.checks import Level
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error, translate
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.create import create, cron, expiry_times
from trainyard_kit.clouds.gke.machines import COMES_WITH, GPU_MACHINE, GkePlan
from trainyard_kit.clouds.gke.preflight import quotas, required
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.gke.token import access_token
from trainyard_kit.clouds.spec import Machines
from trainyard_kit.clouds.steps import Steps
from trainyard_kit.clouds.tags import Tags

from .google.api_errors import stockout
from .google.fake import PROJECT

ZONE = "us-central1-c"
OPTIONS = {"zone": ZONE, "accelerator": "nvidia-tesla-t4", "confirm": True}
CORES = {"name": "a2-highgpu-1g", "guestCpus": 12, "memoryMb": 87040}
TIMEFRAME = (
    "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your "
    "iat and exp values in the JWT claim."
)


@contextmanager
def token_service(words):
    """Yield the address of a service that gives no tokens, and says why."""
    body = json.dumps({"error": "invalid_grant", "error_description": words}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "words", "fix"),
    [
        ("Token has been expired or revoked.", "expired or were revoked", "application-default login"),
        (TIMEFRAME, "clock is wrong", "timedatectl"),
    ],
)
def test_credentials_that_have_expired_are_told_from_a_wrong_clock(monkeypatch, tmp_path, said, words, fix):
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN", raising=False)
    with token_service(said) as address:
        account = {"type": "service_account", "client_email": "x@y.iam.gserviceaccount.com"}
        account |= {"private_key": private_key(), "token_uri": address, "project_id": PROJECT}
        (file := tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with pytest.raises(GcpError, match=words) as caught:
            access_token()
    assert caught.value.reason is ErrorReason.CREDENTIALS and fix in caught.value.fix


def private_key():
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()


def test_a_clock_in_the_past_is_named_where_tls_notices_it_first():
    error = ssl.SSLCertVerificationError("certificate verify failed: certificate is not yet valid")
    assert "clock is wrong" in translate(error, "compute: zones.get", PROJECT).what


def test_a_zone_that_has_none_left_proposes_the_next_one_where_nobody_can_be_asked(google, clock, state_home):
    google.fail("container.CreateNodePool", 1, stockout(ZONE), times=9)
    plan = GkeCluster("dry", GcpSession(PROJECT, ZONE))._make_plan(Shape(2, options=OPTIONS))
    with pytest.raises(GcpError, match="does not have enough resources") as caught:
        create(GcpSession(PROJECT, ZONE), replace(plan, confirm=False), Steps("dry", clock=google.clock))
    assert "`confirm=True` uses us-central1-a" in caught.value.fix
    GkeCluster.delete_at(GcpSession(PROJECT), "dry")
    assert google.left() == []


def test_a_failed_deletion_keeps_its_schedule_and_deletes_the_rest(google, clock, state_home):
    session = GcpSession(PROJECT, ZONE)
    lab = GkeCluster("dry", session)
    create(session, lab._make_plan(Shape(1, options=OPTIONS)), Steps("dry", clock=google.clock))
    google.deny("artifactregistry.repositories.delete")
    with pytest.raises(GcpError, match=r"artifactregistry\.repositories\.delete"):
        GkeCluster.delete_at(session, "dry")
    left = {resource.name for resource in GkeCluster.find_resources(session, "dry")}
    assert {"repository", "end of the cluster", "roles of expiry", "account expiry"} <= left
    assert not left & {"cluster", "network", "subnet", "bucket"}
    google.project.denied.clear()
    GkeCluster.delete_at(session, "dry")
    assert google.left() == []


@pytest.mark.parametrize("kind", [requests.exceptions.SSLError, OSError, auth.TransportError])
def test_a_companys_certificate_is_named_with_the_variables_that_help(kind):
    translated = translate(
        kind("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "container", "p"
    )
    assert "REQUESTS_CA_BUNDLE" in translated.fix


def test_an_organisation_that_forbids_public_addresses_is_answered_by_private_nodes():
    words = "Constraint constraints/compute.vmExternalIpAccess violated for project p."
    assert "private=True" in to_error(ErrorReply(412, "", words), "operation", "p").fix


@pytest.mark.parametrize("end", ["23:00", "23:29", "23:44", "23:45", "23:59", "00:00", "12:00"])
def test_an_end_at_any_minute_is_tried_on_the_day_after_as_well(end):
    at = datetime.fromisoformat(f"2026-12-31T{end}:00+00:00")
    training, cluster, again = expiry_times(at)
    assert training == at < cluster < again
    minute, hours, *_ = cron(again).split()
    assert hours == "0-23" and minute == "5"
    assert again - at < timedelta(days=1, hours=1)  # while the account may still delete


def quota_names():
    """The names that Compute Engine's discovery document has."""
    file = Path(googleapiclient.__file__).with_name("discovery_cache") / "documents" / "compute.v1.json"
    return set(json.loads(file.read_text())["schemas"]["Quota"]["properties"]["metric"]["enum"])


@pytest.mark.parametrize("kind", [*COMES_WITH, "nvidia-tesla-t4"])
def test_the_quota_of_each_kind_of_gpu_has_the_name_that_compute_engine_gives_it(google, kind):
    machine = min(COMES_WITH[kind].items())[1] if kind in COMES_WITH else GPU_MACHINE
    machines = Machines(machine, 2, 1, kind, spot=True)
    quotas = required(GcpSession(PROJECT, ZONE), GkePlan(Tags("lab", "", ""), machines))
    assert set(quotas) <= {*quota_names(), "PREEMPTIBLE_GPUS_PER_GPU_FAMILY"}
    assert quotas["GPUS_ALL_REGIONS"] == 2


@pytest.mark.parametrize(
    ("kind", "shared", "own"),
    [("n1-standard-4", 12, {}), ("n2-standard-4", 4, {"N2_CPUS": 8}), ("a2-highgpu-1g", 4, {"A2_CPUS": 24})],
)
def test_cores_count_against_the_quota_of_their_family(google, kind, shared, own):
    google.rest.store.put("compute", f"projects/{PROJECT}/zones/{ZONE}/machineTypes/a2-highgpu-1g", CORES)
    plan = GkePlan(Tags("lab", "", ""), Machines(kind, 2))
    quotas = required(GcpSession(PROJECT, ZONE), plan)
    assert quotas["CPUS"] == shared and set(quotas) <= quota_names()
    assert own.items() <= quotas.items()


def test_a_quota_that_compute_engine_does_not_tell_is_a_warning(google):
    plan = GkePlan(Tags("lab", "", ""), Machines("a3-highgpu-8g", 1, 8, "nvidia-h100-80gb"))
    checks = list(quotas(GcpSession(PROJECT, "us-central1-c"), plan))
    (h100,) = (check for check in checks if "H100" in check.name)
    assert h100.level is Level.WARN and "8 needed" in h100.message


@pytest.mark.parametrize("kind", [auth.OAuthError, auth.RefreshError, auth.UserAccessTokenError])
def test_a_federated_identity_that_is_refused_is_no_network_that_fails(kind):
    assert translate(kind("invalid_grant"), "container", PROJECT).reason == ErrorReason.CREDENTIALS
