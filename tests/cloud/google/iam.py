"""Who may do what: service accounts, and the bindings of a project's policy with their conditions.

Known are the few roles that matter here, and roles of one's own; of conditions, comparisons of
``request.time``, ``resource.type`` and ``resource.name`` joined by && and ||.
"""

import fnmatch
import re
import uuid
from datetime import datetime
from types import SimpleNamespace

from .api_errors import ApiError
from .rest import Request, Rest

# What counts of https://cloud.google.com/iam/docs/roles-permissions/container
ROLES = {
    "roles/owner": ("*",),
    "roles/editor": ("*",),
    "roles/container.admin": ("container.*",),
    "roles/container.clusterAdmin": (
        *(f"container.clusters.{verb}" for verb in ("create", "delete", "get", "list", "update")),
        "container.operations.*",
    ),
    "roles/container.clusterViewer": ("container.clusters.get", "container.clusters.list"),
}
_CEL = re.compile(
    r'(?:\s|&&|\|\||[()<>!=]|request\.time|resource\.(?:type|name)|timestamp\("[^"]*"\)|"[^"]*"'
    r"|\.(?:endsWith|startsWith))+"
)


def may(rest: Rest, account: str, permission: str, resource: str, project: str) -> bool:
    """Return whether a service account may do this, by the project's policy, now."""
    policy = rest.store.get("cloudresourcemanager", f"projects/{project}").policy
    for binding in policy.get("bindings", ()):
        given = any(fnmatch.fnmatchcase(permission, each) for each in _permissions(rest, binding["role"]))
        if given and f"serviceAccount:{account}" in binding.get("members", ()):
            expression = binding.get("condition", {}).get("expression", "true")
            if expression == "true" or _holds(expression, rest.world.clock.now, resource):
                return True
    return False


def create(rest: Rest, request: Request) -> dict:
    """Make a service account."""
    name = request.body.get("accountId", "")
    project = rest.world.project(request.project)
    email = f"{name}@{project.id}.iam.gserviceaccount.com"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", name):
        raise ApiError("INVALID_ARGUMENT", f"Invalid service account ID: {name!r}: 6 to 30 characters.")
    if rest.store.has("iam", f"{request.path}/{email}"):
        raise ApiError(
            "ALREADY_EXISTS", f"Service account {name} already exists within project projects/{project.id}."
        )
    number = str(uuid.uuid4().int)[:21]
    body = {"email": email, "projectId": project.id, "uniqueId": number, "oauth2ClientId": number}
    return rest.create(request, email, {**request.body.get("serviceAccount", {}), **body})


def patch(rest: Rest, request: Request) -> dict:
    """Change what the mask names of a service account."""
    body = rest.store.get("iam", request.path).body
    for key in request.body.get("updateMask", "").split(","):
        if key not in ("displayName", "description"):
            raise ApiError("INVALID_ARGUMENT", f"The field {key!r} of a service account cannot be changed.")
        body[key] = request.body.get("serviceAccount", {}).get(key, "")
    return body


def delete(rest: Rest, request: Request) -> dict:
    """Delete a service account; policies keep it, as deleted."""
    gone = rest.store.get("iam", request.path).body
    rest.store.drop("iam", request.path)
    before = f"serviceAccount:{gone['email']}"
    after = f"deleted:{before}?uid={gone['uniqueId']}"
    for thing in rest.store.every():
        for binding in thing.policy.get("bindings", ()):
            binding["members"] = [after if each == before else each for each in binding.get("members", ())]
    return {}


def set_policy(rest: Rest, request: Request) -> dict:
    """Set a project's policy: every account that it names has to be there."""
    policy = request.body.get("policy", {})
    conditions = False
    for binding in policy.get("bindings", ()):
        conditions |= "condition" in binding
        for member in binding.get("members", ()):
            kind, _, email = member.partition(":")
            ours = email.endswith(f"@{request.project}.iam.gserviceaccount.com")
            if kind == "serviceAccount" and ours:
                path = f"projects/{request.project}/serviceAccounts/{email}"
                if not rest.store.has("iam", path):
                    raise ApiError("INVALID_ARGUMENT", f"Service account {email} does not exist.")
    if conditions and policy.get("version") != 3:
        raise ApiError(
            "INVALID_ARGUMENT",
            "A policy that has conditions must have version 3 (etag and requested version).",
        )
    return rest._setIamPolicy(request)


def bindings_left(rest: Rest) -> list[str]:
    """Return the lines of the projects' policies."""
    return [
        f"{thing.path} policy: {binding['role']} {member}"
        for thing in rest.store.every("cloudresourcemanager")
        for binding in thing.policy.get("bindings", ())
        for member in binding.get("members", ())
    ]


def _permissions(rest: Rest, role: str) -> tuple[str, ...]:
    if rest.store.has("iam", role):
        return tuple(rest.store.get("iam", role).body.get("includedPermissions", ()))
    return ROLES.get(role, ())


def _holds(expression: str, now: datetime, resource: str) -> bool:
    if not _CEL.fullmatch(expression):
        raise ApiError("INVALID_ARGUMENT", f"The fake does not understand the condition {expression}")
    for theirs, ours in (
        ("&&", " and "),
        ("||", " or "),
        ("endsWith", "endswith"),
        ("startsWith", "startswith"),
    ):
        expression = expression.replace(theirs, ours)
    words = resource.split("/")
    kind = "Cluster" if words[-2:-1] == ["clusters"] else "NodePool" if "nodePools" in words else "Project"
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
}
