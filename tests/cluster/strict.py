"""Namespaces as strict as a company's: rows that tests combine, and somebody with rights in one alone."""

import secrets

import yaml

from kitlib.clusters.existing import ExistingCluster
from kitlib.errors import Rejected
from kitlib.k8s import manifests

from ..patience import until

LEVEL = "pod-security.kubernetes.io/enforce"


def quota(**hard):
    spec = {"hard": {"requests.cpu": "8", "requests.memory": "16Gi", **hard}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": spec}


def limit_range(kind="Container", **limits):
    spec = {"limits": [{"type": kind, **limits}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "team"}, "spec": spec}


def quota_of_services_that_run_on():
    """No pod without a deadline, by a quota whose scope the kit does not compute."""
    spec = {"hard": {"pods": "0"}, "scopes": ["NotTerminating"]}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "scoped"}, "spec": spec}


def default_deny():
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    meta = {"name": "default-deny"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def rule(name, expression):
    """A rule of the cluster about pods, for the namespaces with its label: two objects of the cluster."""
    group, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"matchLabels": {"rule": name}}
    about = {"resourceRules": [pods]}
    spec = {"matchConstraints": about, "validations": [{"expression": expression}]}
    bound = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": where},
    }
    meta = {"name": name}
    return [
        {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec},
        {"apiVersion": group, "kind": f"{kind}Binding", "metadata": meta, "spec": bound},
    ]


RULES = {
    "labelled": "has(object.metadata.labels) && 'team' in object.metadata.labels",
    "mirrored": "object.spec.containers.all(c, c.image.startsWith('mirror.example/hub/'))",
    "limited": "object.spec.containers.all(c, has(c.resources.limits) && 'memory' in c.resources.limits)",
    "read-only": "object.spec.containers.all(c, has(c.securityContext.readOnlyRootFilesystem))",
}
# By the name of a row: labels of the namespace, and objects in it.
ROWS = {
    "restricted": ({LEVEL: "restricted"}, []),
    "baseline": ({LEVEL: "baseline"}, []),
    "quota": ({}, [quota(**{"limits.cpu": "16", "limits.memory": "32Gi"})]),
    "least": ({}, [limit_range(min={"cpu": "200m", "memory": "100Mi"})]),
    "ratio": ({}, [limit_range(maxLimitRequestRatio={"cpu": "4", "memory": "4"})]),
    "most": ({}, [limit_range(max={"cpu": "2", "memory": "2Gi"})]),
    "small pods": ({}, [limit_range("Pod", max={"cpu": "500m", "memory": "512Mi"})]),
    "small volumes": ({}, [limit_range("PersistentVolumeClaim", max={"storage": "2Gi"})]),
    "little storage": ({}, [quota(**{"requests.storage": "2Gi"})]),
    "no services": ({}, [quota(**{"count/services": "0"})]),
    "scoped": ({}, [quota_of_services_that_run_on()]),
    "default-deny": ({}, [default_deny()]),
    **{name: ({"rule": name}, rule(name, expression)) for name, expression in RULES.items()},
}
READS = {
    "": ["limitranges", "resourcequotas", "serviceaccounts", "events"],
    "networking.k8s.io": ["networkpolicies"],
}
WRITES = {
    "": [
        "pods", "pods/exec", "pods/log", "configmaps", "secrets", "services", "persistentvolumeclaims",
        "podtemplates", "events", "serviceaccounts",
    ],
    "batch": ["jobs"],
    "rbac.authorization.k8s.io": ["roles", "rolebindings"],
    "kubeflow.org": ["*"],
    "trainer.kubeflow.org": ["*"],
    "elastic.pytorch.org": ["*"],
}  # fmt: skip


class StrictNamespace:
    """A namespace with the restrictions of some rows, and the connection of a user who has rights in it."""

    def __init__(self, cluster, path, rows, *, cannot=()):
        self.admin = cluster
        self.name = f"strict-{secrets.token_hex(3)}"
        labels = {key: value for row in rows for key, value in ROWS[row][0].items()}
        meta = {"name": self.name, "labels": labels}
        cluster.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.kube = cluster.kube.within(self.name)
        for row in rows:
            for item in ROWS[row][1]:
                self.kube.apply(item)
            if row in RULES:
                until(self._refuses, f"the rule {row} to hold")
        self._bind_user(cannot)
        token, _ = self.kube.token("engineer", namespace=self.name, seconds=3600)
        content = cluster.kube.kubeconfig_for(token, user="engineer", namespace=self.name)
        (path / "kubeconfig").write_text(yaml.safe_dump(content))
        self.cluster = ExistingCluster(self.name, kubeconfig=path / "kubeconfig")

    def _refuses(self):
        """Whether a pod is refused that has nothing that a rule asks for."""
        spec = {"containers": [{"name": "main", "image": "busybox"}]}
        try:
            meta = {"name": "bare"}
            self.kube.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, dry_run=True
            )
        except Rejected as error:
            return "ValidatingAdmissionPolicy" in error.what
        return False

    def _bind_user(self, cannot):
        rbac = "rbac.authorization.k8s.io"
        rules = [
            {
                "apiGroups": [group],
                "verbs": verbs,
                "resources": [item for item in items if item not in cannot],
            }
            for verbs, table in ((["get", "list", "watch"], READS), (["*"], WRITES))
            for group, items in table.items()
        ]
        account = {"kind": "ServiceAccount", "name": "engineer", "namespace": self.name}
        role = {"apiGroup": rbac, "kind": "Role", "name": "engineer"}
        meta = {"metadata": {"name": "engineer"}}
        self.kube.create({"apiVersion": "v1", "kind": "ServiceAccount"} | meta)
        self.kube.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "rules": rules} | meta)
        binding = {"kind": "RoleBinding", "subjects": [account], "roleRef": role}
        self.kube.create({"apiVersion": f"{rbac}/v1"} | binding | meta)

    def apply(self, path):
        for item in manifests.read(path):
            self.kube.create(item)

    def delete(self):
        self.cluster.forget()
        self.kube.delete("Namespace", self.name)
