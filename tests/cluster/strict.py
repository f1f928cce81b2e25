"""Namespaces as strict as a company's: rows that tests combine, and somebody with rights in one alone."""

import copy
import secrets
from functools import partial
from pathlib import Path

import yaml

from kitlib.clusters.existing import ExistingCluster
from kitlib.errors import Rejected
from kitlib.k8s import manifests
from kitlib.k8s.pod_security import PodSecurity

from ..patience import until

TABLE = yaml.safe_load(Path(__file__).with_name("strict.yaml").read_text(encoding="utf-8"))
ROWS = TABLE["rows"]  # by the name of a row: labels of the namespace, objects in it, or a rule of the cluster


def rule(name):
    """A rule of the cluster about pods, for the namespaces with its label: two objects of the cluster."""
    policy, bound = copy.deepcopy(TABLE["rule"])
    policy["metadata"] = bound["metadata"] = {"name": name}
    policy["spec"]["validations"] = [{"expression": ROWS[name]["expression"]}]
    bound["spec"]["policyName"] = name
    bound["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {f"rule-{name}": "holds"}}}
    return [policy, bound]


class StrictNamespace:
    """A namespace with the restrictions of some rows, and the connection of a user who has rights in it."""

    def __init__(self, cluster, path, rows, *, cannot=()):
        self.admin = cluster
        self.name = f"strict-{secrets.token_hex(3)}"
        labels = {key: value for row in rows for key, value in ROWS[row].get("labels", {}).items()}
        labels |= {f"rule-{row}": "holds" for row in rows if "expression" in ROWS[row]}
        meta = {"name": self.name, "labels": labels}
        cluster.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.kube = cluster.kube.in_namespace(self.name)
        for row in rows:
            for item in ROWS[row].get("objects", []) + (rule(row) if "expression" in ROWS[row] else []):
                self.kube.apply(item)
                if item["kind"] == "ResourceQuota":  # the API server admits by what it has counted
                    until(partial(self._is_counted, item["metadata"]["name"]), "the quota to be counted")
            if "expression" in ROWS[row]:
                until(self._refuses, f"the rule {row} to hold")
        self._bind_user(cannot)
        token, _ = self.kube.token("engineer", namespace=self.name, seconds=3600)
        content = cluster.kube.kubeconfig_for(token, user="engineer", namespace=self.name)
        (path / "kubeconfig").write_text(yaml.safe_dump(content))
        self.cluster = ExistingCluster(self.name, kubeconfig=path / "kubeconfig")

    def _is_counted(self, quota):
        return bool(self.kube.get("ResourceQuota", quota).get("status", {}).get("hard"))

    def _refuses(self):
        """Whether a rule refuses a pod that has nothing that it asks for, and what Pod Security does."""
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}}
        spec = {"containers": [{"name": "main", "image": "busybox"}]}
        try:
            self.kube.create(PodSecurity().apply(pod | {"spec": spec}), dry_run=True)
        except Rejected as error:
            return "ValidatingAdmissionPolicy" in error.what
        return False

    def _bind_user(self, cannot):
        for item in copy.deepcopy(TABLE["user"]):
            for rights in item.get("rules", []):
                rights["resources"] = [name for name in rights["resources"] if name not in cannot]
            for subject in item.get("subjects", []):
                subject["namespace"] = self.name
            self.kube.create(item)

    def apply(self, path):
        for item in manifests.read(path):
            self.kube.create(item)

    def delete(self):
        self.cluster.forget()
        self.kube.delete("Namespace", self.name)
