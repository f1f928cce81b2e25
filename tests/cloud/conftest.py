"""What the tests of the clouds share: a fake AWS in this process, emptied before each test; a fake Google
in this process, a new one for each.
"""

from functools import cache

import pytest
from botocore.loaders import JSONFileLoader

from trainyard_kit.clouds.gke.cluster import GkeCluster

from .aws import FakeAws
from .eks_processes import EksProcesses
from .google.fake import PROJECT, FakeGoogle


@pytest.fixture(scope="session")
def one_aws():
    """The fake AWS; botocore's models are parsed once for all clients and moto, which changes that of S3."""
    load = JSONFileLoader.load_file
    parse = cache(lambda path: load(JSONFileLoader(), path))

    def load_once(loader, path):
        return load(loader, path) if "/s3/" in path else parse(path)

    with pytest.MonkeyPatch.context() as patch, FakeAws() as fake:
        patch.setattr(JSONFileLoader, "load_file", load_once)
        yield fake


@pytest.fixture
def aws(one_aws, monkeypatch, tmp_path):
    """The fake AWS, empty; boto3 is led to it, and has credentials."""
    one_aws.reset()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", one_aws.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return one_aws


@pytest.fixture
def user(aws, state_home, monkeypatch):
    """Processes of a user with an account at the fake AWS, and without a budget."""
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    return EksProcesses(aws, monkeypatch.setattr)


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
    """The fake Google's time, which passes as the kit waits for a cluster."""
    monkeypatch.setattr(GkeCluster, "clock", google.clock)
