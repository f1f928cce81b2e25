"""The rights of an IAM user: those of the policy that docs/eks.md tells a user to have, and no other.

AWS checks an operation's action, and with it the actions that its service authorization reference calls
dependent. Resources are matched for roles alone, as the policy limits nothing else.
"""

import json
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import iam_policy
from botocore import xform_name

from .faults import ACCOUNT, INSTRUCTOR, Refused
from .wire import Question

FREE = {"sts:GetCallerIdentity"}  # AWS lets everybody call it


@cache
def statements() -> list[dict[str, Any]]:
    """Read the policy from the page, as a user copies it."""
    block = iam_policy.BLOCK.search(iam_policy.PAGE.read_text(encoding="utf-8"))[0]
    return json.loads(block.removeprefix("```json\n").removesuffix("```\n"))["Statement"]


def is_allowed(action: str, resource: str) -> bool:
    """Look for a statement that allows an action; a resource of ``*`` stands for one that nobody looks at."""
    return any(
        action in statement["Action"] and (resource == "*" or fnmatchcase(resource, statement["Resource"]))
        for statement in statements()
    )


def authorize(question: Question) -> None:
    """Refuse a call of the user that the policy does not allow.

    Raises:
        Refused: As IAM words it.
    """
    if question.action in FREE or question.model is None:
        return
    name = (question.parameters or {}).get("RoleName")
    role = f"arn:aws:iam::{ACCOUNT}:role{question.parameters.get('Path', '/trainyard/')}{name}"
    request = (question.service, xform_name(question.operation))
    if request not in iam_policy.of_product():
        raise NotImplementedError(f"tools/iam_policy.py does not find {request} in the product's source")
    actions = iam_policy.actions_of(*request)
    required = iam_policy.with_dependent_actions(set(actions))
    for action in sorted(required):
        if not is_allowed(action, role if name and action in actions else "*"):
            raise refusal(action)


def check(*actions: str) -> None:
    """Refuse what CloudFormation would do with the user's own rights, where a stack has no role.

    Raises:
        Refused: As IAM words it.
    """
    for action in actions:
        if not any(action in statement["Action"] for statement in statements()):
            raise refusal(action)


def refusal(action: str) -> Refused:
    """Build IAM's refusal."""
    words = f"User: {INSTRUCTOR} is not authorized to perform: {action}"
    words += f" because no identity-based policy allows the {action} action"
    return Refused("AccessDenied", words, status=403)
