"""What a user may do in a cluster, asked of the API server itself, before anything is tried.

Each row of the table is a SelfSubjectAccessReview: a SelfSubjectRulesReview is not complete where a webhook
decides, as on the clouds. How a permission is granted is in `api_errors`.
"""

from typing import NamedTuple

from kitlib.display.tables import Table
from kitlib.k8s.api_errors import grant
from kitlib.k8s.client import Kube


class Permission(NamedTuple):
    """One permission that the course needs.

    Attributes:
        to: Its purpose.
        verb, resource, group: As in RBAC; the resource with its subresource.
        cluster_wide: Whether it is needed in the whole cluster, and not in a namespace.
        notebooks: Which need it.
    """

    to: str
    verb: str
    resource: str
    group: str = ""
    cluster_wide: bool = False
    notebooks: str = "all"


PERMISSIONS = (
    Permission("launch runs", "create", "jobs", "batch"),
    Permission("give pods the trainer", "create", "configmaps"),
    Permission("give pods names", "create", "services"),
    Permission("see pods", "watch", "pods"),
    Permission("read logs", "get", "pods/log"),
    Permission("see events", "list", "events"),
    Permission("delete runs", "delete", "jobs", "batch"),
    Permission("create volumes", "create", "persistentvolumeclaims", notebooks="02, 04, 06 to 13"),
    Permission("copy files, kill ranks", "create", "pods/exec", notebooks="02, 04, 06 to 13"),
    Permission("create pods", "create", "pods", notebooks="01, 02, 04, 06 to 13"),
    Permission("scale runs", "patch", "jobs", "batch", notebooks="08, 09"),
    Permission(
        "give a run's master a role", "create", "roles", "rbac.authorization.k8s.io", notebooks="10, 11"
    ),
    Permission("see the use of pods", "list", "pods", "metrics.k8s.io", notebooks="cluster.top"),
    Permission("see nodes", "list", "nodes", "", True, "01, 10, 12"),
    Permission("see storage classes", "list", "storageclasses", "storage.k8s.io", True, "02"),
    Permission("see where a volume is", "get", "persistentvolumes", "", True, "02"),
    Permission("bring a volume of one's own", "create", "persistentvolumes", "", True, "02"),
    Permission("create priorities", "create", "priorityclasses", "scheduling.k8s.io", True, "11"),
    Permission(
        "install operators", "create", "customresourcedefinitions", "apiextensions.k8s.io", True, "09"
    ),
    Permission("give a workshop", "create", "namespaces", "", True, "kit.workshop"),
)


def may(kube: Kube, permission: Permission) -> bool:
    """Ask whether this user has a permission, in this namespace or in the whole cluster."""
    resource, _, part = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "resource": resource,
        "subresource": part,
        "group": permission.group,
    }
    if not permission.cluster_wide:
        attributes["namespace"] = kube.namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {"name": ""},
        "spec": {"resourceAttributes": attributes},
    }
    return bool(kube.create(review)["status"]["allowed"])


def table(kube: Kube) -> Table:
    """Make a row for each of :data:`PERMISSIONS`."""
    rows = []
    for permission in PERMISSIONS:
        allowed = may(kube, permission)
        where = "" if permission.cluster_wide else kube.namespace
        how = grant(
            permission.verb, permission.resource, group=permission.group, namespace=where
        ).splitlines()[0]
        takes = f"{permission.verb} {permission.resource}{'.' + permission.group if permission.group else ''}"
        rows.append(
            (permission.to, takes, "yes" if allowed else "NO", permission.notebooks, "" if allowed else how)
        )
    return Table(("to", "takes", "allowed", "notebooks", "the role that would allow it"), rows)
