"""The fake Amazon as a process of its own, for tests that end processes: controlled by HTTP."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

ROOT = Path(__file__).resolve().parents[2]


def test_a_fake_in_a_process_of_its_own_is_told_by_http_what_goes_wrong(amazon):
    command = [sys.executable, "-m", "tests.cloud.aws"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        endpoint = other.stdout.readline().strip()

        def tell(verb, **given):
            request = urllib.request.Request(f"{endpoint}/_fake/{verb}", data=json.dumps(given).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())

        tell("fail", action="ec2:CreateVpc", error="VpcLimitExceeded")
        ec2 = boto3.client("ec2", endpoint_url=endpoint)
        with pytest.raises(ClientError, match="VpcLimitExceeded"):
            ec2.create_vpc(CidrBlock="10.0.0.0/16")
        ec2.create_vpc(CidrBlock="10.0.0.0/16")
        began = tell("now")
        tell("advance", seconds=60)
        assert tell("now") >= began + 60
        assert [each["kind"] for each in tell("left")] == ["vpc"]
        assert [each["outcome"] for each in tell("calls")] == ["VpcLimitExceeded", "ok"]
        tell("reset")
        assert tell("left") == []
        with pytest.raises(urllib.error.HTTPError):
            tell("fail", nonsense=True)
        other.stdin.close()
        assert other.wait(60) == 0
