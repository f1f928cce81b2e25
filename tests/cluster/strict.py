"""Namespaces as strict as a company's: rows that tests combine, and somebody with rights in one alone."""

import secrets

import yaml

from kitlib.clusters.existing import ExistingCluster
from kitlib.k8s import manifests

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
                self.kube.create(item)
        self._bind_user(cannot)
        token, _ = self.kube.token("engineer", namespace=self.name, seconds=3600)
        content = cluster.kube.kubeconfig_for(token, user="engineer", namespace=self.name)
        (path / "kubeconfig").write_text(yaml.safe_dump(content))
        self.cluster = ExistingCluster(self.name, kubeconfig=path / "kubeconfig")

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
