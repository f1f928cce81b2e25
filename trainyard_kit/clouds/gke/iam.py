"""Roles of a cluster's service accounts: in the project, on its bucket and its repository."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any

from trainyard_kit.clouds.gke.operations import Operations
from trainyard_kit.clouds.gke.parts import ROLES, Part, account
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.tags import Tags

GRACE = timedelta(days=2)  # for retries of a failed expiry


def project_part(session: GcpSession) -> Part:
    return Part("project", "cloudresourcemanager", f"projects/{session.project}")


def set_roles(
    operations: Operations, step: str, part: Part, member: str, bindings: list[dict[str, Any]]
) -> None:
    """Set a member's roles on a resource; the roles of other members do not change."""

    def change() -> None:
        policy = _policy(operations.session, part)
        present, kept = [], []
        for binding in policy.get("bindings", []):
            members = binding.get("members", ())
            other_members = [name for name in members if not _is_member(name, member)]
            if len(other_members) < len(members):
                present.append(binding)
            if other_members:
                kept.append(binding | {"members": other_members})
        if sorted(map(_role_and_condition, present)) == sorted(map(_role_and_condition, bindings)):
            return
        granted = [binding | {"members": [member]} for binding in bindings]
        policy |= {"bindings": [*kept, *granted], "version": 3}
        if part.service == "storage":
            operations.session.request("PUT", part.service, f"{part.path}/iam", policy)
        else:
            operations.session.request("POST", part.service, f"{part.path}:setIamPolicy", {"policy": policy})

    with operations.steps.step(step):
        operations.send(step, change)


def find_roles(session: GcpSession, cluster: str) -> list[str]:
    """Find which of a cluster's service accounts have a role in the project."""
    bindings = _policy(session, project_part(session)).get("bindings", ())
    names = {name for binding in bindings for name in binding.get("members", ())}
    members = {role: f"serviceAccount:{account(session, role, cluster)}" for role in ROLES}
    return [role for role, member in members.items() if any(_is_member(name, member) for name in names)]


def expiry_condition(tags: Tags) -> dict[str, str]:
    """The condition of the expiry account's role: only this cluster, until shortly after its expiry.

    Schedules repeat every year, and must not delete a cluster of the same name next year.
    """
    last = (tags.end + GRACE).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = "container.googleapis.com/Cluster"
    return {
        "title": f"Trainyard: until the end of {tags.cluster}"[:100],
        "expression": f'request.time < timestamp("{last}") && '
        f'(resource.type != "{kind}" || resource.name.endsWith("/clusters/{tags.cluster}"))',
    }


def _policy(session: GcpSession, part: Part) -> dict[str, Any]:
    """Get a policy in version 3: older versions omit conditions, and writing them back loses these."""
    if part.service == "storage":
        return session.request("GET", part.service, f"{part.path}/iam", optionsRequestedPolicyVersion=3)
    path, version = f"{part.path}:getIamPolicy", {"requestedPolicyVersion": 3}
    if part.service == "cloudresourcemanager":
        return session.request("POST", part.service, path, {"options": version})
    return session.request("GET", part.service, path, **{"options.requestedPolicyVersion": 3})


def _is_member(name: str, member: str) -> bool:
    return name == member or name.startswith(f"deleted:{member}?uid=")


def _role_and_condition(binding: Mapping[str, Any]) -> tuple[str, str]:
    return binding["role"], (binding.get("condition") or {}).get("expression", "")
