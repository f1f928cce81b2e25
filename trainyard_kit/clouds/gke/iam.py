"""Roles of a cluster's service accounts: in the project, on its bucket and on its repository."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any

from trainyard_kit.clouds.gke.operations import Operations
from trainyard_kit.clouds.gke.parts import ROLES, Part, account
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.tags import Tags

GRACE = timedelta(days=2)  # in which an expiry that fails is tried again


def project_part(session: GcpSession) -> Part:
    return Part("project", "cloudresourcemanager", f"projects/{session.project}")


def set_roles(
    operations: Operations, step: str, part: Part, member: str, bindings: list[dict[str, Any]]
) -> None:
    """Let somebody have these roles on a resource, and no others; everybody else keeps theirs."""

    def change() -> None:
        policy = _policy(operations.session, part)
        before = policy.get("bindings", [])
        mine = [binding for binding in before if any(_is(who, member) for who in binding.get("members", ()))]
        if sorted(map(_essence, mine)) == sorted(map(_essence, bindings)):
            return
        remaining = [
            binding | {"members": [who for who in binding.get("members", ()) if not _is(who, member)]}
            for binding in before
        ]
        granted = [binding | {"members": [member]} for binding in bindings]
        policy |= {
            "bindings": [*(binding for binding in remaining if binding["members"]), *granted],
            "version": 3,
        }
        if part.service == "storage":
            operations.session.request("PUT", part.service, f"{part.path}/iam", policy)
        else:
            operations.session.request("POST", part.service, f"{part.path}:setIamPolicy", {"policy": policy})

    with operations.steps.step(step):
        operations.send(step, change)


def find_roles(session: GcpSession, cluster: str) -> list[str]:
    """Find which of a cluster's service accounts have a role in the project."""
    bindings = _policy(session, project_part(session)).get("bindings", ())
    members_of_policy = {who for binding in bindings for who in binding.get("members", ())}
    members = {role: f"serviceAccount:{account(session, role, cluster)}" for role in ROLES}
    return [role for role, member in members.items() if any(_is(who, member) for who in members_of_policy)]


def ending_condition(tags: Tags) -> dict[str, str]:
    """The condition under which the expiry's account may delete: only this cluster, and only now.

    Schedules repeat every year: next year's cluster of this name is not theirs.
    """
    last = (tags.end + GRACE).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = "container.googleapis.com/Cluster"
    return {
        "title": f"Trainyard: until the end of {tags.cluster}"[:100],
        "expression": f'request.time < timestamp("{last}") && '
        f'(resource.type != "{kind}" || resource.name.endsWith("/clusters/{tags.cluster}"))',
    }


def _policy(session: GcpSession, part: Part) -> dict[str, Any]:
    """Get a policy in version 3: older ones hide conditions, and lose them."""
    if part.service == "storage":
        return session.request("GET", part.service, f"{part.path}/iam", optionsRequestedPolicyVersion=3)
    path, version = f"{part.path}:getIamPolicy", {"requestedPolicyVersion": 3}
    if part.service == "cloudresourcemanager":
        return session.request("POST", part.service, path, {"options": version})
    return session.request("GET", part.service, path, **{"options.requestedPolicyVersion": 3})


def _is(member: str, account: str) -> bool:
    return member == account or member.startswith(f"deleted:{account}?uid=")


def _essence(binding: Mapping[str, Any]) -> tuple[str, str]:
    return binding["role"], (binding.get("condition") or {}).get("expression", "")
