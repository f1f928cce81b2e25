"""Signing in at AWS: `aws login` works, and each way that has expired is named by its own command."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, InvalidConfigError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kitlib.errors import KitError
from trainyard_kit.clouds.eks import cluster, token
from trainyard_kit.clouds.eks.client_errors import AwsError, to_error
from trainyard_kit.clouds.eks.session import AwsSession

SESSION = "arn:aws:iam::123456789012:user/ada"
REFUSED = "The security token included in the request is expired"


@pytest.fixture
def home(aws, tmp_path, monkeypatch):
    """Return what writes the user's configuration: the sections of ~/.aws/config."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_LOGIN_CACHE_DIRECTORY", str(tmp_path))
    return lambda text: (tmp_path / "config").write_text(text)


def sign_in(folder, *, minutes):
    """Keep what `aws login` does: keys, and the private key by which they are renewed."""
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    ends = datetime.now(UTC) + timedelta(minutes=minutes)
    access = {"accessKeyId": "ASIATESTTESTTESTTEST", "secretAccessKey": "s", "sessionToken": "t"}
    access |= {"accountId": "123456789012", "expiresAt": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
    token_file = {"accessToken": access, "refreshToken": "r", "clientId": "c", "dpopKey": key.decode()}
    name = hashlib.sha256(SESSION.encode()).hexdigest()
    (folder / f"{name}.json").write_text(json.dumps(token_file | {"tokenType": "t", "identityToken": "i"}))


def test_a_user_of_aws_login_gets_a_token_for_the_cluster(home, tmp_path):
    home(f"[default]\nregion = us-west-2\nlogin_session = {SESSION}\n")
    sign_in(tmp_path, minutes=60)
    session = AwsSession("us-west-2")
    assert session.identity["Account"] == "123456789012" and session.credentials.method == "login"
    assert token.token(session, "lab").startswith(token.PREFIX)


@pytest.mark.parametrize("without", ["a session", "the package"])
def test_an_unusable_login_names_its_own_command_as_the_fix(home, tmp_path, monkeypatch, capsys, without):
    home(f"[profile ada]\nregion = us-west-2\nlogin_session = {SESSION}\n")
    if without == "the package":
        sign_in(tmp_path, minutes=60)
        monkeypatch.setattr("botocore.credentials.EC", None)
    expected = "aws login --profile ada" if without == "a session" else 'pip install "botocore[crt]"'
    session = AwsSession("us-west-2", "ada")
    for ask in (lambda: session.identity, lambda: session.credentials, lambda: token.token(session, "lab")):
        with pytest.raises(AwsError) as raised:
            ask()
        assert expected in raised.value.fix and "botocore failed" not in raised.value.what
    assert token.main(["--cluster", "lab", "--region", "us-west-2", "--profile", "ada"]) == 1
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "profile", "environment", "fix"),
    [
        ("[default]\nlogin_session = x\n", None, {}, "aws login;"),
        ("[profile ada]\nsso_session = s\n", "ada", {}, "aws sso login --profile ada"),
        ("[profile ada]\nsso_start_url = s\n", None, {"AWS_PROFILE": "ada"}, "aws sso login --profile ada"),
        (
            "[profile a]\nrole_arn = r\nsource_profile = b\n[profile b]\nlogin_session = x\n",
            "a",
            {},
            "aws login --profile b",
        ),
        (
            "[profile a]\nrole_arn = r\nsource_profile = a\naws_access_key_id = k\n",
            "a",
            {},
            "aws configure --profile a",
        ),
        ("", None, {"AWS_ACCESS_KEY_ID": "A", "AWS_SESSION_TOKEN": "t"}, "export new keys"),
        ("[default]\nsso_session = s\n", None, {"AWS_ACCESS_KEY_ID": "A"}, "export new keys"),
        ("[profile a]\nsso_session = s\n", "a", {"AWS_ACCESS_KEY_ID": "A"}, "aws sso login --profile a"),
        ("", None, {}, "aws login, or aws configure sso"),
    ],
)
def test_expired_credentials_are_renewed_in_the_way_in_which_the_user_signed_in(
    home, monkeypatch, tmp_path, config, profile, environment, fix
):
    home(config)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    session = AwsSession("us-west-2", profile)  # no request is sent: the error is as AWS sends it
    reply = {"Error": {"Code": "ExpiredToken", "Message": REFUSED}}
    error = session.convert(ClientError(reply, "DescribeStacks"), "cloudformation", "describe_stacks", {})
    assert isinstance(error, KitError) and "have expired" in error.what and fix in error.fix


def test_a_configuration_that_leads_nowhere_is_to_be_corrected():
    wrong = InvalidConfigError(error_msg="the source profile references itself")
    assert "correct" in to_error(wrong, "sts", "sign in", {}, region="us-west-2", profile=None).fix


def test_the_region_of_a_role_is_read_from_its_name_in_every_partition():
    regions = {"us-west-2", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"}
    listed = [{"RoleName": f"trainyard-my-lab-{region}-stack"} for region in regions]
    assert cluster.regions(SimpleNamespace(region="us-west-2", paginate=lambda *_, **__: listed)) == regions
