"""What the tests of the clouds share: a fake Amazon in this process, emptied before each test; a fake Google
in this process, a new one for each.
"""

from datetime import UTC, datetime

import pytest

from clouds.google.gke import GkeCluster

from .aws import FakeAmazon
from .google.fake import PROJECT, FakeGoogle
from .simulated_clock import SimulatedClock


@pytest.fixture(scope="session")
def one_amazon():
    with FakeAmazon() as amazon:
        yield amazon


@pytest.fixture
def amazon(one_amazon, monkeypatch, tmp_path):
    """The fake Amazon, empty; boto3 is led to it, has credentials, and tries each call once."""
    one_amazon.reset()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", one_amazon.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return one_amazon


@pytest.fixture
def google(monkeypatch, tmp_path):
    """A fake Google Cloud with one empty project, to which Google's libraries are led; nobody signs in."""
    with FakeGoogle() as fake:
        for name, value in fake.endpoints.items():
            monkeypatch.setenv(name, value)
        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_AUTH_ACCESS_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        yield fake


@pytest.fixture
def clock(google, monkeypatch):
    """The fake Google's time, which begins now and passes as the kit waits for a cluster."""
    passing = SimulatedClock(passed=google.clock.advance)
    monkeypatch.setattr(GkeCluster, "clock", passing)
    google.clock.begin_at(datetime.now(UTC))
    return passing
