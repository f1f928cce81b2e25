"""Service accounts, the project's policy, and what they allow.

Known are the few roles that matter here; of conditions, comparisons of ``request.time``, ``resource.type``
and ``resource.name`` joined by && and ||.
"""

import fnmatch
import re
import uuid
from datetime import datetime, timedelta
from types import SimpleNamespace

from .api_errors import ApiError
from .rest import Request, Rest

# The container rights of https://cloud.google.com/iam/docs/roles-permissions/container
ROLES = {"roles/container.clusterAdmin": ("container.clusters.*", "container.operations.*")}
_CEL = re.compile(
    r'(?:\s|&&|\|\||[()<>!=]|request\.time|resource\.(?:type|name)|timestamp|"[^"]*"|\.endsWith)+'
)
_KINDS = {"clusters": "Cluster", "nodePools": "NodePool"}


def may(rest: Rest, account: str, permission: str, resource: str) -> bool:
    """Check whether the project's policy allows this to a service account, now."""
    project = rest.store.get("cloudresourcemanager", f"projects/{rest.world.the_project.id}")
    since = rest.world.clock.date() - timedelta(seconds=rest.world.delays["policy"])
    for binding in project.policy_at(since).get("bindings", ()):
        allowed = any(fnmatch.fnmatchcase(permission, role) for role in ROLES.get(binding["role"], ()))
        if allowed and f"serviceAccount:{account}" in binding["members"]:
            expression = binding.get("condition", {}).get("expression", "true")
            if expression == "true" or _holds(expression, rest.world.clock.date(), resource):
                return True
    return False


def knows(rest: Rest, email: str) -> bool:
    """Check whether a service account is seen."""
    return rest.store.has("iam", f"projects/{rest.world.the_project.id}/serviceAccounts/{email}")


def check_act_as(rest: Rest, email: str) -> None:
    """Refuse to let an account act that is not known (yet), or for which the user lacks the right."""
    email = email.rpartition("/")[2]
    if not knows(rest, email) or "iam.serviceAccounts.actAs" in rest.world.the_project.denied:
        words = f'The principal lacks IAM permission "iam.serviceAccounts.actAs" for the resource "{email}" '
        raise ApiError("PERMISSION_DENIED", f"{words}(or the resource may not exist).")


def create(rest: Rest, request: Request) -> dict:
    """Create a service account, which is seen a little later."""
    name, world = request.body.get("accountId", ""), rest.world
    email = f"{name}@{world.project(request.project).id}.iam.gserviceaccount.com"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", name):
        raise ApiError("INVALID_ARGUMENT", f"Invalid service account ID: {name!r}: 6 to 30 characters.")
    body = {"email": email, "projectId": request.project, "uniqueId": str(uuid.uuid4().int)[:21]}
    account = rest.create(request, email, {**request.body.get("serviceAccount", {}), **body})
    thing = rest.store.get("iam", account["name"])
    thing.seen_at = world.clock.date() + timedelta(seconds=world.delays["account"])
    return account


def patch(rest: Rest, request: Request) -> dict:
    """Change what the mask names of a service account."""
    body = rest.store.get("iam", request.path).body
    if request.body.get("updateMask") != "description":
        raise ApiError("INVALID_ARGUMENT", "The fake changes the description of a service account only.")
    body["description"] = request.body["serviceAccount"]["description"]
    return body


def delete(rest: Rest, request: Request) -> dict:
    """Delete a service account; policies keep it, as deleted."""
    account = rest.store.get("iam", request.path).body
    before = f"serviceAccount:{account['email']}"
    after = f"deleted:{before}?uid={account['uniqueId']}"
    for thing in rest.store.every():
        for binding in thing.policy.get("bindings", ()):
            binding["members"] = [after if name == before else name for name in binding.get("members", ())]
    return rest.store.drop("iam", request.path)


def set_policy(rest: Rest, request: Request) -> dict:
    """Set a policy: of the project's own accounts, each that it names has to exist."""
    policy = request.body.get("policy", request.body)
    for binding in policy.get("bindings", ()):
        for member in binding.get("members", ()):
            kind, _, email = member.partition(":")
            if kind == "serviceAccount" and not knows(rest, email):
                raise ApiError("INVALID_ARGUMENT", f"Service account {email} does not exist.")
    if any("condition" in binding for binding in policy.get("bindings", ())) and policy.get("version") != 3:
        raise ApiError("INVALID_ARGUMENT", "A policy that has conditions must have version 3.")
    return rest._setIamPolicy(request)


def _holds(expression: str, now: datetime, resource: str) -> bool:
    if not _CEL.fullmatch(expression):
        raise ApiError("INVALID_ARGUMENT", f"The fake does not understand the condition {expression}")
    for theirs, ours in (("&&", " and "), ("||", " or "), ("endsWith", "endswith")):
        expression = expression.replace(theirs, ours)
    kind = _KINDS.get(resource.rpartition("/")[0].rpartition("/")[2], "Project")
    known = {
        "timestamp": datetime.fromisoformat,
        "request": SimpleNamespace(time=now),
        "resource": SimpleNamespace(name=resource, type=f"container.googleapis.com/{kind}"),
    }
    return bool(eval(expression, {"__builtins__": {}}, known))  # of the words above, and no others


SPECIALS = {
    "iam.projects.serviceAccounts.create": create,
    "iam.projects.serviceAccounts.patch": patch,
    "iam.projects.serviceAccounts.delete": delete,
    "cloudresourcemanager.projects.setIamPolicy": set_policy,
    "artifactregistry.projects.locations.repositories.setIamPolicy": set_policy,
    "storage.buckets.setIamPolicy": set_policy,
}
