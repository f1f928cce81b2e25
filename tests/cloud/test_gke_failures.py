"""What goes wrong at Google Cloud, said so that somebody can fix it: by real credentials, and by the fake.

Denied rights, disabled APIs, quotas, typos, names that are taken and clusters that were deleted by hand are
in `test_gke_session`, `test_gke_preflight` and `test_gke_resources`.
"""

import json
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from clouds.google.client_errors import ErrorReason, GcpError, translate
from clouds.google.gke import GkeCluster
from clouds.google.machines import MachinePool
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, discover, resources, traces
from clouds.google.token import access_token
from clouds.reconciler import reconcile
from clouds.tags import Tags
from kitlib.clusters.base import Shape
from kitlib.errors import BadInput, PreflightFailed

from .google.api_errors import stockout
from .google.fake import PROJECT
from .simulated_clock import SimulatedClock

ZONE = "us-central1-c"
TAGS = Tags("lab", "ada", "spring", datetime(2026, 11, 22, 13, 30, tzinfo=UTC))
OPTIONS = {"zone": ZONE, "confirm": True}
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
        ("Token has been expired or revoked.", "expired or were withdrawn", "application-default login"),
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
    assert caught.value.why is ErrorReason.CREDENTIALS and fix in caught.value.fix


def private_key():
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return made.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()


def test_a_clock_in_the_past_is_named_where_tls_notices_it_first():
    error = ssl.SSLCertVerificationError("certificate verify failed: certificate is not yet valid")
    assert "clock is wrong" in translate(error, "compute: zones.get", PROJECT).what


@pytest.mark.parametrize(
    ("machines", "proposed"),
    [
        ({"accelerator": "nvidia-tesla-t4"}, ['zone="us-central1-a"', 'accelerator="nvidia-l4" in this one']),
        ({}, ['zone="us-central1-a"', 'zone="us-central1-f"']),
    ],
)
def test_a_zone_that_has_none_left_proposes_others_and_other_gpus(
    google, clock, state_home, machines, proposed
):
    google.fail("container.CreateNodePool", 1, stockout(ZONE))
    with pytest.raises(GcpError, match="does not have enough resources") as caught:
        GkeCluster.create("dry", Shape(2, options=OPTIONS | machines))
    assert all(each in caught.value.fix for each in proposed)
    GkeCluster("dry", GcpSession(PROJECT, ZONE)).delete()
    assert google.left() == []


def test_a_network_that_is_lost_in_the_middle_is_named_and_the_same_call_goes_on(google):
    clock = SimulatedClock(passed=google.clock.advance)
    plan = GkePlan(GcpSession(PROJECT, ZONE), TAGS, MachinePool.of(nodes=1))
    google.cut(30, "after")
    with pytest.raises(GcpError) as caught:
        reconcile.bring_up(resources(plan), title="lab", resume="the same call", clock=clock)
    assert caught.value.why in (ErrorReason.NETWORK, ErrorReason.FAULT) and "the same call" in str(
        caught.value
    )
    google.clear_faults()
    reconcile.bring_up(resources(plan), title="lab", resume="the same call", clock=clock)
    reconcile.take_down(discover(GcpSession(PROJECT), "lab"), title="lab", resume="again", clock=clock)
    assert google.left() == []


def test_a_project_that_nobody_pays_for_or_that_may_have_no_gpu_makes_nothing(google, clock, state_home):
    google.project.billing = False
    google.quota("GPUS_ALL_REGIONS", 0)
    options = OPTIONS | {"accelerator": "nvidia-tesla-t4"}
    with pytest.raises(PreflightFailed) as caught:
        GkeCluster.create("dry", Shape(2, options=options))
    assert "billing/linkedaccount" in str(caught.value) and "GPUS_ALL_REGIONS" in str(caught.value)
    assert google.left() == []


def test_who_may_not_look_is_told_the_role_before_anything_is_made(google, clock, state_home):
    google.project.denied |= {"container.clusters.list", "container.clusters.create"}
    with pytest.raises((PreflightFailed, GcpError)) as caught:
        GkeCluster.create("dry", Shape(1, options=OPTIONS))
    assert "roles/container.admin" in str(caught.value)
    assert google.left() == []


def test_hostile_words_in_a_label_are_believed_by_nobody_and_keep_nobody_from_listing(google):
    session = GcpSession(PROJECT, ZONE)
    for number, zone in enumerate(("----", "..-..-..", "us", "-us-central1-c")):
        labels = {"trainyard-kit": "true", "trainyard-cluster": "lab", "trainyard-expires": "never"}
        body = {"name": f"trainyard-of-somebody-{number}", "labels": labels}
        session.rest("storage", "buckets.insert", project=PROJECT, body=body)
        found = google.rest.store.get("storage", f"b/{body['name']}").body
        found["labels"] = labels | {"trainyard-zone": zone}
    trace = traces(session)["lab"]
    assert (trace.zone, trace.tags.expires) == ("", None)
    assert discover(session, "lab") == []  # a bucket of another name is not the kit's
    assert discover(GcpSession(PROJECT)) == []


def test_what_google_takes_no_request_for_is_bad_input_and_no_traceback(google):
    with pytest.raises(BadInput, match="does not match"):
        GcpSession(PROJECT).rest("compute", "regions.get", project=PROJECT, region="---")
