"""Amazon's own policies, as they are asked for: moto knows all, and takes a second to read them."""

import json
from functools import cache

from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, iam_backends

from .identities import ACCOUNT
from .wire import Question

PREFIX = "arn:aws:iam::aws:policy/"


def provide(question: Question) -> None:
    """Have the policy that a role is to get, if it is one of Amazon's."""
    arn = question.parameters["PolicyArn"]
    there = iam_backends[ACCOUNT]["aws"].managed_policies
    name = arn.removeprefix(PREFIX).split("/")[-1]
    if arn.startswith(PREFIX) and arn not in there and name in _all():
        made = AWSManagedPolicy.from_data(name, ACCOUNT, "aws", _all()[name])
        if made.arn == arn:
            there[arn] = made


@cache
def _all() -> dict[str, dict]:
    return json.loads(aws_managed_policies_data)
