"""What is in a cluster of EKS beside its nodes: add-ons, access entries, pod identity associations."""

import secrets
from typing import Any

from .calls import Refused
from .eks_store import Cluster, page
from .identities import ACCOUNT, principal
from .wire import Question

# Of each add-on its newest version, and whether it has to run on a node before it is active.
ADDONS = {
    "vpc-cni": ("v1.21.1-eksbuild.1", False),
    "kube-proxy": ("v1.35.0-eksbuild.2", False),
    "coredns": ("v1.13.1-eksbuild.1", True),
    "eks-pod-identity-agent": ("v1.3.10-eksbuild.2", False),
    "aws-efs-csi-driver": ("v2.1.15-eksbuild.1", True),
    "aws-ebs-csi-driver": ("v1.54.0-eksbuild.1", True),
    "aws-mountpoint-s3-csi-driver": ("v2.2.2-eksbuild.1", False),
    "metrics-server": ("v0.8.0-eksbuild.6", True),
    "amazon-cloudwatch-observability": ("v4.8.0-eksbuild.1", True),
    "eks-node-monitoring-agent": ("v1.5.1-eksbuild.1", False),
}
POLICIES = [
    f"arn:aws:eks::aws:cluster-access-policy/AmazonEKS{name}Policy"
    for name in ("ClusterAdmin", "Admin", "Edit", "View", "AdminView")
]


class Parts:
    """The operations on them; mixed into `eks.Eks`."""

    def create_addon(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        cluster, name = self.cluster(question), given["addonName"]
        about = {"clusterName": cluster.name, "addonName": name}
        if cluster.status not in ("ACTIVE", "UPDATING"):
            words = "Addon cannot be created because the cluster is not in ACTIVE state"
            raise Refused("InvalidRequestException", words, **about)
        if name not in ADDONS:
            raise Refused("InvalidParameterException", f"Addon {name} specified is not supported", **about)
        if name in cluster.addons:
            raise Refused("ResourceInUseException", "Addon already exists.", **about)
        version = given.get("addonVersion") or ADDONS[name][0]
        if version != ADDONS[name][0]:
            words = (
                f"Addon version specified is not supported in {cluster.data['version']} kubernetes version"
            )
            raise Refused("InvalidParameterException", words, **about)
        where = f"arn:aws:eks:{question.region}:{ACCOUNT}:addon/{cluster.name}/{name}"
        made = {
            "addonName": name,
            "clusterName": cluster.name,
            "status": "CREATING",
            "addonVersion": version,
            "health": {"issues": []},
            "addonArn": f"{where}/{secrets.token_hex(8)}",
            "createdAt": self.clock.date(),
            "modifiedAt": self.clock.date(),
            "tags": dict(given.get("tags") or {}),
            "podIdentityAssociations": [],
        }
        for key in ("configurationValues", "serviceAccountRoleArn"):
            if key in given:
                made[key] = given[key]
        for each in given.get("podIdentityAssociations") or []:
            found = self._associate(question, cluster, "kube-system", each, owner=made["addonArn"])
            made["podIdentityAssociations"].append(found["associationArn"])
        cluster.addons[name] = made
        self.clock.after(self.waits["add-on"], lambda: self._run(cluster, made))
        self.clock.after(self.waits["add-on degraded"], lambda: self._degrade(made))
        return {"addon": made}

    def describe_addon(self, question: Question) -> dict[str, Any]:
        return {"addon": self._addon(question)[1]}

    def list_addons(self, question: Question) -> dict[str, Any]:
        names = sorted(self.cluster(question).addons)
        part, token = page(names, question.parameters, self.amazon.page_size)
        return {"addons": part, "nextToken": token}

    def update_addon(self, question: Question) -> dict[str, Any]:
        cluster, found = self._addon(question)
        for key in ("configurationValues", "addonVersion", "serviceAccountRoleArn"):
            if key in question.parameters:
                found[key] = question.parameters[key]
        found["status"] = "UPDATING"
        return {"update": self.update(cluster, "AddonUpdate", "add-on", found)}

    def delete_addon(self, question: Question) -> dict[str, Any]:
        cluster, found = self._addon(question)
        found["status"] = "DELETING"

        def gone() -> None:
            cluster.addons.pop(found["addonName"], None)
            for key, each in list(cluster.associations.items()):
                if each.get("ownerArn") == found["addonArn"]:
                    del cluster.associations[key]

        self.clock.after(self.waits["add-on gone"], gone)
        return {"addon": found}

    def describe_addon_versions(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        asked = given.get("addonName")
        if asked and asked not in ADDONS:
            raise Refused("ResourceNotFoundException", f"Addon {asked} not found", addonName=asked)
        works = [
            {
                "clusterVersion": given.get("kubernetesVersion") or "1.35",
                "platformVersions": ["*"],
                "defaultVersion": True,
            }
        ]
        rows = [
            {
                "addonName": name,
                "type": "networking",
                "publisher": "eks",
                "owner": "aws",
                "addonVersions": [
                    {"addonVersion": version, "architecture": ["amd64", "arm64"], "compatibilities": works}
                ],
            }
            for name, (version, _) in sorted(ADDONS.items())
            if asked in (None, name)
        ]
        part, token = page(rows, given, self.amazon.page_size)
        return {"addons": part, "nextToken": token}

    def nodes_came(self, cluster: Cluster) -> None:
        """Let the add-ons that waited for a node go on."""
        for each in cluster.addons.values():
            if each["status"] in ("CREATING", "DEGRADED"):
                self.clock.after(self.waits["add-on"], lambda each=each: self._run(cluster, each))

    def create_access_entry(self, question: Question) -> dict[str, Any]:
        cluster, given = self._entries(question), question.parameters
        arn = given["principalArn"]
        if arn in cluster.entries:
            words = "The specified access entry resource is already in use on this cluster."
            raise Refused("ResourceInUseException", words, clusterName=cluster.name)
        if principal(arn) != arn or ":iam::" not in arn:
            words = "The principalArn parameter format is not valid"
            raise Refused("InvalidParameterException", words, clusterName=cluster.name)
        made = self.add_entry(cluster, question, arn, kind=given.get("type") or "STANDARD")
        made["tags"] = dict(given.get("tags") or {})
        made["kubernetesGroups"] = list(given.get("kubernetesGroups") or [])
        made["username"] = given.get("username") or arn
        return {"accessEntry": made}

    def describe_access_entry(self, question: Question) -> dict[str, Any]:
        return {"accessEntry": self._entry(question)[1]}

    def list_access_entries(self, question: Question) -> dict[str, Any]:
        cluster, wanted = self._entries(question), question.parameters.get("associatedPolicyArn")
        names = [
            arn
            for arn in sorted(cluster.entries)
            if wanted is None or wanted in cluster.policies.get(arn, {})
        ]
        part, token = page(names, question.parameters, self.amazon.page_size)
        return {"accessEntries": part, "nextToken": token}

    def update_access_entry(self, question: Question) -> dict[str, Any]:
        _, found = self._entry(question)
        for key in ("kubernetesGroups", "username"):
            if key in question.parameters:
                found[key] = question.parameters[key]
        return {"accessEntry": found}

    def delete_access_entry(self, question: Question) -> dict[str, Any]:
        cluster, found = self._entry(question)
        del cluster.entries[found["principalArn"]]
        cluster.policies.pop(found["principalArn"], None)
        return {}

    def associate_access_policy(self, question: Question) -> dict[str, Any]:
        cluster, found = self._entry(question)
        given = question.parameters
        if given["policyArn"] not in POLICIES:
            words = f"The policyArn parameter format is not valid: {given['policyArn']}"
            raise Refused("InvalidParameterException", words, clusterName=cluster.name)
        made = self._policy(cluster, found["principalArn"], given["policyArn"], given["accessScope"])
        return {
            "clusterName": cluster.name,
            "principalArn": found["principalArn"],
            "associatedAccessPolicy": made,
        }

    def disassociate_access_policy(self, question: Question) -> dict[str, Any]:
        cluster, found = self._entry(question)
        cluster.policies.get(found["principalArn"], {}).pop(question.parameters["policyArn"], None)
        return {}

    def list_associated_access_policies(self, question: Question) -> dict[str, Any]:
        cluster, found = self._entry(question)
        arn = found["principalArn"]
        part, token = page(
            list(cluster.policies.get(arn, {}).values()), question.parameters, self.amazon.page_size
        )
        return {
            "clusterName": cluster.name,
            "principalArn": arn,
            "associatedAccessPolicies": part,
            "nextToken": token,
        }

    def list_access_policies(self, question: Question) -> dict[str, Any]:
        rows = [{"name": arn.split("/")[-1], "arn": arn} for arn in POLICIES]
        part, token = page(rows, question.parameters, self.amazon.page_size)
        return {"accessPolicies": part, "nextToken": token}

    def add_entry(
        self,
        cluster: Cluster,
        question: Question,
        arn: str,
        *,
        kind: str = "STANDARD",
        policy: str | None = None,
    ) -> dict[str, Any]:
        """Let somebody in."""
        made = {
            "clusterName": cluster.name,
            "principalArn": arn,
            "kubernetesGroups": ["system:nodes"] if kind == "EC2_LINUX" else [],
            "accessEntryArn": (
                f"arn:aws:eks:{question.region}:{ACCOUNT}:access-entry/{cluster.name}/"
                f"{arn.split(':')[-1].split('/')[0]}/{ACCOUNT}/{arn.split('/')[-1]}/{secrets.token_hex(8)}"
            ),
            "createdAt": self.clock.date(),
            "modifiedAt": self.clock.date(),
            "tags": {},
            "username": "system:node:{{EC2PrivateDNSName}}" if kind == "EC2_LINUX" else arn,
            "type": kind,
        }
        cluster.entries[arn] = made
        if policy is not None:
            self._policy(cluster, arn, policy, {"type": "cluster", "namespaces": []})
        return made

    def create_pod_identity_association(self, question: Question) -> dict[str, Any]:
        cluster, given = self.cluster(question), question.parameters
        self.check_role(given["roleArn"], "pods.eks.amazonaws.com", cluster.name)
        return {"association": self._associate(question, cluster, given["namespace"], given)}

    def describe_pod_identity_association(self, question: Question) -> dict[str, Any]:
        return {"association": self._association(question)[1]}

    def list_pod_identity_associations(self, question: Question) -> dict[str, Any]:
        given, shown = question.parameters, []
        for each in self.cluster(question).associations.values():
            if all(given.get(key) in (None, each[key]) for key in ("namespace", "serviceAccount")):
                keys = (
                    "clusterName",
                    "namespace",
                    "serviceAccount",
                    "associationArn",
                    "associationId",
                    "ownerArn",
                )
                shown.append({key: each[key] for key in keys if key in each})
        part, token = page(shown, given, self.amazon.page_size)
        return {"associations": part, "nextToken": token}

    def update_pod_identity_association(self, question: Question) -> dict[str, Any]:
        _, found = self._association(question)
        if "roleArn" in question.parameters:
            found["roleArn"] = question.parameters["roleArn"]
        return {"association": found}

    def delete_pod_identity_association(self, question: Question) -> dict[str, Any]:
        cluster, found = self._association(question)
        del cluster.associations[found["associationId"]]
        return {"association": found}

    def _addon(self, question: Question) -> tuple[Cluster, dict[str, Any]]:
        cluster, name = self.cluster(question), question.parameters["addonName"]
        if name not in cluster.addons:
            words = f"No addon: {name} found in cluster: {cluster.name}"
            raise Refused("ResourceNotFoundException", words, clusterName=cluster.name, addonName=name)
        return cluster, cluster.addons[name]

    def _run(self, cluster: Cluster, made: dict[str, Any]) -> None:
        issue = self.amazon.services.failures.pop(("add-on", made["addonName"]), None)
        if issue is not None:
            made["status"], made["health"]["issues"] = "CREATE_FAILED", [issue]
        elif made["status"] in ("CREATING", "DEGRADED") and (
            not ADDONS[made["addonName"]][1] or _nodes(cluster)
        ):
            made["status"], made["health"]["issues"] = "ACTIVE", []

    def _degrade(self, made: dict[str, Any]) -> None:
        if made["status"] == "CREATING":
            words = "The add-on is unhealthy because it doesn't have the desired number of replicas."
            made["status"] = "DEGRADED"
            made["health"]["issues"] = [
                {"code": "InsufficientNumberOfReplicas", "message": words, "resourceIds": []}
            ]

    def _entries(self, question: Question) -> Cluster:
        cluster = self.cluster(question)
        if cluster.data["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
            words = (
                "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to "
                "perform this operation."
            )
            raise Refused("InvalidRequestException", words, clusterName=cluster.name)
        return cluster

    def _entry(self, question: Question) -> tuple[Cluster, dict[str, Any]]:
        cluster, arn = self._entries(question), question.parameters["principalArn"]
        if arn not in cluster.entries:
            words = f"The specified principalArn could not be found: {arn}"
            raise Refused("ResourceNotFoundException", words, clusterName=cluster.name)
        return cluster, cluster.entries[arn]

    def _policy(self, cluster: Cluster, arn: str, policy: str, scope: dict[str, Any]) -> dict[str, Any]:
        made = {
            "policyArn": policy,
            "accessScope": {"type": scope["type"], "namespaces": list(scope.get("namespaces") or [])},
            "associatedAt": self.clock.date(),
            "modifiedAt": self.clock.date(),
        }
        cluster.policies.setdefault(arn, {})[policy] = made
        return made

    def _associate(
        self,
        question: Question,
        cluster: Cluster,
        namespace: str,
        given: dict[str, Any],
        *,
        owner: str | None = None,
    ) -> dict[str, Any]:
        account = given["serviceAccount"]
        for each in cluster.associations.values():
            if (each["namespace"], each["serviceAccount"]) == (namespace, account):
                words = f"Association already exists: {each['associationId']}"
                raise Refused("ResourceInUseException", words, clusterName=cluster.name)
        number = f"a-{secrets.token_hex(8)}"
        where = f"arn:aws:eks:{question.region}:{ACCOUNT}:podidentityassociation/{cluster.name}"
        made = {
            "clusterName": cluster.name,
            "namespace": namespace,
            "serviceAccount": account,
            "roleArn": given["roleArn"],
            "associationArn": f"{where}/{number}",
            "associationId": number,
            "tags": dict(given.get("tags") or {}),
            "createdAt": self.clock.date(),
            "modifiedAt": self.clock.date(),
        }
        if owner is not None:
            made["ownerArn"] = owner
        cluster.associations[number] = made
        return made

    def _association(self, question: Question) -> tuple[Cluster, dict[str, Any]]:
        cluster, number = self.cluster(question), question.parameters["associationId"]
        if number not in cluster.associations:
            words = f"No pod identity association found for ID: {number}"
            raise Refused("ResourceNotFoundException", words, clusterName=cluster.name)
        return cluster, cluster.associations[number]


def _nodes(cluster: Cluster) -> bool:
    return any(
        each["status"] == "ACTIVE" and each["scalingConfig"]["desiredSize"]
        for each in cluster.nodegroups.values()
    )
