"""The service accounts of a cluster, and what they may do in the project.

``nodes`` is what its machines run as: they write logs and metrics, and pull images. ``expiry`` is what the
schedules run as that delete the cluster: it may do that to this cluster, until two days after its end. Pods
have none: workload identity lets a bucket's policy name the cluster itself (`storage`). ``builds`` is made
when Cloud Build is first needed: it may use the cluster's bucket and repository, and has no right in the
project.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, timedelta

from clouds.google.access import new_account
from clouds.google.owned import GcpResource, description_of, lasts
from clouds.google.session import GcpSession, find
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.tags import Tags

ROLES = {
    # https://cloud.google.com/kubernetes-engine/docs/how-to/service-accounts: what a node needs at least
    "nodes": "roles/container.defaultNodeServiceAccount",
    "expiry": "roles/container.clusterAdmin",
}
BUILDS = "builds"
ANCHOR = "account expiry"  # made first and unmade last: it costs nothing, and by it the rest is found
_END = re.compile(r'timestamp\("([^"]+)"\)')
GRACE = timedelta(days=2)  # in which an expiry that fails is tried again


def account_id(role: str, cluster: str) -> str:
    """Name a cluster's service account: at most 30 characters, and unique.

    Example:
        >>> account_id("nodes", "lab")
        'ty-nodes-lab-d2d1b5'
    """
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:6]
    return f"ty-{role}-{cluster[:13].strip('-')}-{digest}"


def email(session: GcpSession, role: str, cluster: str) -> str:
    """Return the address by which a cluster's service account is known."""
    return f"{account_id(role, cluster)}@{session.project}.iam.gserviceaccount.com"


class ServiceAccount(GcpResource):
    """A service account.

    Args:
        session: The way into its project.
        tags: Whose it is.
        role: ``nodes``, ``expiry`` or ``builds``.
        exact: Whether the end that its description tells shall be brought to that of the tags; else a later
            one is fine as well.
    """

    kind = "iam.googleapis.com/ServiceAccount"
    expected, expected_gone, poll = 2.0, 2.0, 5.0

    def __init__(self, session: GcpSession, tags: Tags, role: str, *, exact: bool = False) -> None:
        super().__init__(session, tags)
        self.exact = exact
        self.role, self.name = role, f"account {role}"
        self.depends_on = () if self.name == ANCHOR else (ANCHOR,)

    @property
    def id(self) -> str:
        return f"projects/{self.session.project}/serviceAccounts/{self.email}"

    @property
    def email(self) -> str:
        return email(self.session, self.role, self.tags.cluster)

    def found(self):
        return find(self.session.rest, "iam", "projects.serviceAccounts.get", name=self.id)

    def seen(self, found) -> ResourceStatus:
        description = found.get("description", "")
        same = description == description_of(self.tags, self.session.zone)
        fits = same or self.name != ANCHOR or (not self.exact and lasts(description, self.tags))
        return ResourceStatus(ResourceState.READY if fits else ResourceState.PARTIAL, self.id)

    def create(self) -> None:
        description = description_of(self.tags, self.session.zone)
        if self.found() is not None:
            body = {"serviceAccount": {"description": description}, "updateMask": "description"}
            self.session.rest("iam", "projects.serviceAccounts.patch", name=self.id, body=body)
            return
        body = {
            "accountId": account_id(self.role, self.tags.cluster),
            "serviceAccount": {
                "displayName": f"Trainyard {self.tags.cluster}: {self.role}",
                "description": description,
            },
        }
        place = f"projects/{self.session.project}"
        self.send_create(
            lambda: self.session.rest("iam", "projects.serviceAccounts.create", name=place, body=body)
        )

    def remove(self) -> None:
        self.session.rest("iam", "projects.serviceAccounts.delete", name=self.id)


class IamGrant(Resource):
    """What a service account may do in the project: lines of the project's policy."""

    kind = "cloudresourcemanager.googleapis.com/Policy"
    expected, expected_gone, poll = 2.0, 2.0, 5.0

    def __init__(self, session: GcpSession, tags: Tags, role: str, *, exact: bool = False) -> None:
        self.session, self.tags, self.role, self.exact = session, tags, role, exact
        self.where = session.project
        self.name, self.depends_on = f"rights {role}", (f"account {role}",)

    def wanted(self) -> dict:
        """Return the one binding that there shall be, without its members."""
        binding = {"role": ROLES[self.role]}
        if self.role == "expiry" and self.tags.expires:
            binding["condition"] = ending_condition(self.tags)
        return binding

    def describe(self) -> ResourceStatus:
        mine = list(self._mine(self._policy()))
        if not mine:
            return ResourceStatus(ResourceState.ABSENT)
        right = [_essence(each) for each in mine] == [_essence(self.wanted())]
        later = not self.exact and len(mine) == 1 and _lasts(mine[0], self.wanted())
        return ResourceStatus(ResourceState.READY if right or later else ResourceState.PARTIAL, self._member)

    def create(self) -> None:
        def add(policy: dict) -> None:
            self._take_out(policy)
            policy["bindings"].append(self.wanted() | {"members": [self._member]})

        self._change(add)

    def delete(self) -> None:
        if next(self._mine(self._policy()), None) is not None:
            self._change(self._take_out)

    @property
    def _member(self) -> str:
        return f"serviceAccount:{email(self.session, self.role, self.tags.cluster)}"

    def _mine(self, policy: dict):
        return (each for each in policy["bindings"] if any(map(self._is_mine, each.get("members", ()))))

    def _is_mine(self, member: str) -> bool:
        return member == self._member or member.startswith(f"deleted:{self._member}?uid=")

    def _take_out(self, policy: dict) -> None:
        for binding in list(self._mine(policy)):
            binding["members"] = [each for each in binding["members"] if not self._is_mine(each)]
            if not binding["members"]:
                policy["bindings"].remove(binding)

    def _policy(self) -> dict:
        options = {"options": {"requestedPolicyVersion": 3}}  # older versions hide conditions, and lose them
        policy = self.session.rest(
            "cloudresourcemanager",
            "projects.getIamPolicy",
            resource=f"projects/{self.session.project}",
            body=options,
        )
        return {"bindings": [], **policy}

    def _change(self, change: Callable[[dict], None]) -> None:
        policy = self._policy()
        change(policy)
        policy["version"] = 3
        with new_account(self._member):
            self.session.rest(
                "cloudresourcemanager",
                "projects.setIamPolicy",
                resource=f"projects/{self.session.project}",
                body={"policy": policy},
            )


def ending_condition(tags: Tags) -> dict[str, str]:
    """Return on what condition a cluster's end may be brought about.

    Schedules repeat every year: next year's cluster of this name is none of theirs.
    """
    last = (tags.expires + GRACE).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = "container.googleapis.com/Cluster"
    return {
        "title": f"Trainyard: until the end of {tags.cluster}"[:100],
        "expression": f'request.time < timestamp("{last}") && '
        f'(resource.type != "{kind}" || resource.name.endsWith("/clusters/{tags.cluster}"))',
    }


def _lasts(given: dict, wanted: dict) -> bool:
    ends = [_END.search(_essence(each)[1]) for each in (given, wanted)]
    if given["role"] != wanted["role"] or not all(ends):
        return False
    return ends[0][1] >= ends[1][1]  # both are in UTC, and as long


def _essence(binding: dict) -> tuple[str, str]:
    return binding["role"], (binding.get("condition") or {}).get("expression", "")
