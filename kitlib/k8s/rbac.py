"""What a user may do in a cluster, asked of the API server itself, before anything is tried.

A row says what the course does, the right that it takes, whether this user has it, and which notebooks need
it. The question is a SelfSubjectAccessReview for each right: what SelfSubjectRulesReview lists is not
complete where a webhook decides, as on the clouds. How a right is granted is in `refusals`.
"""

from dataclasses import dataclass

from kitlib.display.tables import Table
from kitlib.k8s.api_errors import grant
from kitlib.k8s.client import Kube

COLUMNS = ("to", "takes", "allowed", "notebooks", "the role that would allow it")
ALL = "all"


@dataclass(frozen=True)
class Right:
    """Something that the course does.

    Attributes:
        to: What, in words.
        verb: As RBAC has it.
        resource: As RBAC has it, with its subresource: ``pods/exec``.
        group: Its API group; empty for the core's.
        everywhere: Whether it is asked for the whole cluster, and not for a namespace.
        notebooks: Which need it.
    """

    to: str
    verb: str
    resource: str
    group: str = ""
    everywhere: bool = False
    notebooks: str = ALL

    @property
    def takes(self) -> str:
        """The right, as people say it: ``create jobs.batch``."""
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


RIGHTS = (
    Right("launch runs", "create", "jobs", "batch"),
    Right("give pods the trainer", "create", "configmaps"),
    Right("give pods names", "create", "services"),
    Right("see pods", "watch", "pods"),
    Right("read what they write", "get", "pods/log"),
    Right("see events", "list", "events"),
    Right("delete runs", "delete", "jobs", "batch"),
    Right("ask for volumes", "create", "persistentvolumeclaims", notebooks="02, 04, 06 to 11"),
    Right("copy files, kill ranks", "create", "pods/exec", notebooks="02, 04, 06 to 11"),
    Right("make pods", "create", "pods", notebooks="01, 02, 04, 06 to 11"),
    Right("scale runs", "patch", "jobs", "batch", notebooks="07, 08"),
    Right("give a run's master rights", "create", "roles", "rbac.authorization.k8s.io", notebooks="09"),
    Right("see what pods use", "list", "pods", "metrics.k8s.io", notebooks="cluster.top"),
    Right("see nodes", "list", "nodes", everywhere=True, notebooks="01, 09, 11"),
    Right("see storage classes", "list", "storageclasses", "storage.k8s.io", True, "02"),
    Right("see where a volume is", "get", "persistentvolumes", everywhere=True, notebooks="02"),
    Right("bring a volume of one's own", "create", "persistentvolumes", everywhere=True, notebooks="02"),
    Right("have priorities", "create", "priorityclasses", "scheduling.k8s.io", True, "09"),
    Right("install operators", "create", "customresourcedefinitions", "apiextensions.k8s.io", True, "08"),
    Right("give a workshop", "create", "namespaces", everywhere=True, notebooks="kit.workshop"),
)


def may(kube: Kube, right: Right) -> bool:
    """Return whether this user has a right, in this namespace or in the whole cluster."""
    resource, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "resource": resource, "subresource": part, "group": right.group}
    if not right.everywhere:
        attributes["namespace"] = kube.namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {"name": ""},
        "spec": {"resourceAttributes": attributes},
    }
    return bool(kube.create(review)["status"]["allowed"])


def table(kube: Kube) -> Table:
    """Return a row for each right of :data:`RIGHTS`."""
    rows = []
    for right in RIGHTS:
        allowed = may(kube, right)
        where = "" if right.everywhere else kube.namespace
        how = grant(right.verb, right.resource, group=right.group, namespace=where).splitlines()[0]
        rows.append(
            (right.to, right.takes, "yes" if allowed else "NO", right.notebooks, "" if allowed else how)
        )
    return Table(COLUMNS, rows)
