"""A fake AWS for tests: boto3 speaks to it over HTTP, and time passes only as fast as a test says.

moto answers for most services. What it lacks is here: CloudFormation with stacks that take their time and
fail, EKS, targets of schedules that are called, quotas, and what EC2 refuses to delete.
"""

from functools import cache
from typing import Any

import boto3

from .faults import ADMINISTRATORS_KEY
from .server import FakeAws

__all__ = ["FakeAws", "administrator"]


@cache
def administrator(service: str) -> Any:
    """Build a client of an administrator, once for the process's one fake: what others do in the account."""
    return boto3.client(service, aws_access_key_id=ADMINISTRATORS_KEY, aws_secret_access_key="secret")
