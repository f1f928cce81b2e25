"""``trainyard record``: requests and answers of a cloud, without secrets, played back without the cloud."""

import base64
import json
import os
import re
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner
from google.cloud import container_v1

from kitlib.clusters.base import Shape
from trainyard_kit.cli.main import main
from trainyard_kit.clouds import record
from trainyard_kit.clouds.eks.cluster import EksCluster
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession

from ..unit.made_up_cloud import SimulatedClock
from .gke_lifecycle import GkeProcesses
from .replay import Replay

PROJECT, ACCOUNT = "trainyard-test", "123456789012"
SECRETS = {
    "an access key": "AKIAQWERTYUIOPASDFGH",
    "a secret key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXAMPLEKEY",
    "a session token": "FwoGZXIvYXdzEBYaDFakeSessionTokenValue",
    "a registry's password": "QVdTOmV5SjJhZDg0c2VjcmV0",
    "a CA": base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode() + "ZZZ",
    "a PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7secret\n-----END RSA PRIVATE KEY-----",
    "an OAuth token": "ya29.a0AfB_byDsecretsecretsecret",
    "a JWT": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlLWhlcmU",
    "an EKS token": "k8s-aws-v1.aHR0cHM6Ly9zdHMuYW1hem9uYXdzLmNvbS8_QWN0aW9u",
    "a signature": "0f3c9d8e7a6b5c4d3e2f1a0b9c8d7e6f",
    "an account": ACCOUNT,
    "an e-mail address": "ada@lovelace.example",
    "a project": "my-secret-project",
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A recording that this process writes."""
    path = tmp_path / "clouds.jsonl"
    monkeypatch.setenv(record.FILE, str(path))
    monkeypatch.setenv(record.SALT, "of this test")
    return path


def entries(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def amazon_life():
    """Requests in each of AWS's protocols; what the answers say."""
    session = boto3.Session(region_name="us-west-2")
    record.boto(session)
    sts, iam, ec2, s3, eks, ecr = (session.client(each) for each in ("sts", "iam", "ec2", "s3", "eks", "ecr"))
    account = sts.get_caller_identity()["Account"]
    bucket = f"trainyard-{account}-lab"
    said = [len(account)]
    iam.create_role(RoleName="nodes", Path="/trainyard/", AssumeRolePolicyDocument="{}")
    said.append(iam.get_role(RoleName="nodes")["Role"]["Arn"].rpartition(":")[2])
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    said.append([each["CidrBlock"] for each in ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]])
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket=bucket, Key="context.zip", Body=b"\xff\xfe")
    said.append([each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]])
    with pytest.raises(ClientError) as error:
        eks.describe_cluster(name="lab")
    said.append(error.value.response["Error"]["Code"])
    said.append(ecr.get_authorization_token()["authorizationData"][0]["proxyEndpoint"].partition(".")[2])
    said.append(eks.list_clusters()["clusters"])
    return said


def google_life(project=None):
    """Requests over REST and gRPC; what the answers say."""
    session = GcpSession(project, "us-central1-c")
    place = {"project": session.project}
    said = [session.find("compute", "networks.get", network="lab", **place)]
    session.rest("compute", "networks.insert", body={"name": "lab", "autoCreateSubnetworks": False}, **place)
    said.append([each["name"] for each in session.every("compute", "networks.list", "items", **place)])
    session.rest("storage", "buckets.insert", body={"name": f"{session.project}-lab"}, **place)
    said.append(session.find("container", "get_cluster", name=f"{session.place}/clusters/lab"))
    cluster = container_v1.Cluster(name="lab", initial_node_count=1)
    begun = session.container("create_cluster", parent=session.place, cluster=cluster)
    done = session.container("get_operation", name=f"{session.place}/operations/{begun.name}")
    said.append((done.status.name, done.operation_type.name))
    found = session.container("get_cluster", name=f"{session.place}/clusters/lab")
    said.append((found.name, found.status.name, bool(found.master_auth.cluster_ca_certificate)))
    return said


def test_a_life_at_amazon_is_played_back_without_it(aws, file, monkeypatch):
    first = amazon_life()
    assert {each["operation"] for each in entries(file)} >= {"CreateRole", "DescribeCluster", "PutObject"}
    monkeypatch.delenv(record.FILE)
    with Replay(file) as replay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", replay.environment["AWS_ENDPOINT_URL"])
        assert amazon_life() == first
        assert replay.unknown == []
        with pytest.raises(ClientError):
            boto3.client("eks").delete_cluster(name="lab")
        assert len(replay.unknown) == 1


def test_a_life_at_google_is_played_back_without_it(google, file, monkeypatch):
    google.backing("https://127.0.0.1:6443", "Q0E=")
    first = google_life()
    assert PROJECT not in file.read_text()
    monkeypatch.delenv(record.FILE)
    with Replay(file) as replay:
        for name, value in replay.environment.items():
            monkeypatch.setenv(name, value)
        assert google_life() == first
        assert replay.unknown == []


def test_the_whole_life_of_a_gke_cluster_is_played_back_without_google(google, file, monkeypatch, state_home):
    google.backing("https://127.0.0.1:6443", "Q0E=")
    processes, until = GkeProcesses(google, monkeypatch.setattr), datetime.now(UTC) + timedelta(hours=4)
    monkeypatch.setattr(
        "trainyard_kit.clouds.gke.cluster.until_of", lambda hours: until
    )  # both lives ask for the same end

    def life(project):
        cluster = processes.create(project=project)
        seen = [cluster.status["state"], len(cluster.resources())]
        GkeCluster.delete_at(GcpSession(project), "lab")
        return [*seen, GkeCluster.clusters(GcpSession(project))]

    first = life(PROJECT)
    assert not google.left()
    monkeypatch.delenv(record.FILE)
    monkeypatch.setattr(GkeCluster, "clock", SimulatedClock())
    with Replay(file) as replay:
        for name, value in replay.environment.items():
            monkeypatch.setenv(name, value)
        assert life(replay.environment["GOOGLE_CLOUD_PROJECT"]) == first
        assert replay.unknown == []


@pytest.mark.slow
def test_the_whole_life_of_an_eks_cluster_is_played_back_without_aws(aws, file, monkeypatch, state_home):
    until = datetime.now(UTC) + timedelta(hours=4)
    monkeypatch.setattr(
        "trainyard_kit.clouds.eks.cluster.until_of", lambda hours: until
    )  # both lives ask for the same end
    monkeypatch.setattr(EksCluster, "clock", aws.clock)
    monkeypatch.setattr(EksCluster, "_install_addons", lambda cluster, plan: None)
    monkeypatch.setattr("trainyard_kit.clouds.cluster.release", lambda kube, about: None)

    def life():
        options = {"region": "us-west-2", "instance_type": "m5.xlarge", "confirm": True}
        cluster = EksCluster.create("lab", Shape(2, options=options))
        seen = [cluster.status["state"], len(cluster.resources())]
        EksCluster.delete_at(AwsSession("us-west-2"), "lab")
        return [*seen, EksCluster.clusters(AwsSession("us-west-2"))]

    first = life()
    assert aws.left() == []
    assert ACCOUNT not in file.read_text()
    monkeypatch.delenv(record.FILE)
    monkeypatch.setattr(EksCluster, "clock", SimulatedClock())
    with Replay(file) as replay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", replay.environment["AWS_ENDPOINT_URL"])
        assert life() == first
        assert replay.unknown == []


def test_no_planted_secret_is_in_the_file(file):
    planted = {
        "headers": {"Authorization": f"Bearer {SECRETS['an OAuth token']}"},
        "form": {"AccessKeyId": SECRETS["an access key"], "NextToken": SECRETS["a session token"]},
        "xml": f"<Credentials><SecretAccessKey>{SECRETS['a secret key']}</SecretAccessKey>"
        f"<SessionToken>{SECRETS['a session token']}</SessionToken></Credentials>",
        "authorizationData": [{"authorizationToken": SECRETS["a registry's password"]}],
        "cluster": {
            "certificateAuthority": {"data": SECRETS["a CA"]},
            "arn": f"arn:{SECRETS['an account']}:x",
        },
        "masterAuth": {
            "clusterCaCertificate": SECRETS["a CA"],
            "client_key": SECRETS["a PEM"],
            "password": "pw",
        },
        "text": "\n".join(SECRETS[each] for each in ("a PEM", "a JWT", "an EKS token", "an OAuth token")),
        "log": f"{SECRETS['an e-mail address']} of {SECRETS['an account']} is in {SECRETS['a project']}",
        "url": f"https://s3/x?X-Amz-Credential={SECRETS['an access key']}%2F20261122&X-Amz-Security-Token="
        f"{SECRETS['a session token']}&X-Amz-Signature={SECRETS['a signature']}",
        f"role of {SECRETS['an account']}": f"as a key, and in %22{SECRETS['an account']}%22",
        "nested": json.dumps({"key": SECRETS["an access key"], "who": SECRETS["an e-mail address"]}),
    }
    assert all(json.dumps(each)[1:-1] in json.dumps(planted) for each in SECRETS.values()), "each is planted"
    record._write(**planted, project=SECRETS["a project"])
    text = file.read_text()
    assert [name for name, each in SECRETS.items() if json.dumps(each)[1:-1] in text] == []
    assert "MIIEow" not in text and '"pw"' not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_account_is_always_replaced_by_the_same_number_and_another_one_by_another(file):
    def instead(number):
        return record.without_secrets(f"arn:aws:iam::{number}:role/nodes")

    assert instead(123456789012) == instead(123456789012) != instead(123456789013)
    assert re.fullmatch(r"arn:aws:iam::\d{12}:role/nodes", instead(123456789012))
    assert record.without_secrets("operation-1700000000000-5f") == "operation-1700000000000-5f"
    robot = "nodes@p-1.iam.gserviceaccount.com"
    assert record.without_secrets(robot) == robot
    harmless = {"HttpTokens": "required", "ClientRequestToken": "5f0c"}
    assert record.without_secrets(harmless) == harmless


def test_what_is_written_at_the_same_time_is_whole_lines(file):
    threads = [
        threading.Thread(target=lambda: [record._write(words="x" * 20_000) for _ in range(20)])
        for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(entries(file)) == 160


def test_without_the_variable_nothing_is_wrapped(monkeypatch):
    monkeypatch.delenv(record.FILE, raising=False)
    session, plain = boto3.Session(region_name="us-west-2"), object()
    record.boto(session)
    assert record.http(plain, "compute", "p") is plain and record.rpc(len, "container", "m", "p") is len


def test_a_command_is_run_with_the_recording_and_its_exit_status_is_kept(tmp_path):
    file = tmp_path / "new.jsonl"
    code = (
        "import os, sys; from trainyard_kit.clouds import record; record._write(words='hello'); sys.exit(3)"
    )
    done = CliRunner().invoke(main, ["record", str(file), "--", sys.executable, "-c", code])
    assert done.exit_code == 3 and "1 requests are in" in done.stderr
    assert entries(file)[0]["words"] == "hello"
    assert record.FILE not in os.environ
    again = CliRunner().invoke(main, ["record", str(file), "--", "true"])
    assert again.exit_code == 1 and "it exists already" in again.stderr
    quiet = CliRunner().invoke(main, ["record", str(tmp_path / "quiet"), "--", "true"])
    assert quiet.exit_code == 0 and "no request was sent" in quiet.stderr
    missing = CliRunner().invoke(main, ["record", str(tmp_path / "x"), "--", "no-such-command"])
    assert missing.exit_code == 1 and "cannot be run" in missing.stderr
