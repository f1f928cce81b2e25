"""Node groups of EKS: created, scaled and deleted in their time, and the ways in which they fail."""

import secrets
from typing import Any

from moto.ec2.models import ec2_backends

from .calls import Refused
from .eks_store import Cluster, page
from .identities import ACCOUNT
from .wire import Question

TRIES = 15.0  # seconds until it is looked again whether nodes joined


class NodeGroups:
    """The operations on node groups; mixed into `eks.Eks`."""

    def create_nodegroup(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        cluster, name = self.cluster(question, active=True), given["nodegroupName"]
        about = {"clusterName": cluster.name, "nodegroupName": name}
        if name in cluster.nodegroups:
            words = f"NodeGroup already exists with name {name} and cluster name {cluster.name}"
            raise Refused("ResourceInUseException", words, **about)
        self.check_role(given["nodeRole"], "ec2.amazonaws.com", cluster.name)
        self.subnets(question, given["subnets"], cluster.name)
        scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 2} | (given.get("scalingConfig") or {})
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            words = f"desired capacity {scaling['desiredSize']} must be between minSize and maxSize"
            raise Refused("InvalidParameterException", words, **about)
        where = f"arn:aws:eks:{question.region}:{ACCOUNT}:nodegroup/{cluster.name}/{name}"
        made = {
            "nodegroupName": name,
            "nodegroupArn": f"{where}/{secrets.token_hex(4)}-{secrets.token_hex(6)}",
            "clusterName": cluster.name,
            "version": given.get("version") or cluster.data["version"],
            "releaseVersion": f"{cluster.data['version']}.1-20261101",
            "createdAt": self.clock.date(),
            "modifiedAt": self.clock.date(),
            "status": "CREATING",
            "capacityType": given.get("capacityType") or "ON_DEMAND",
            "scalingConfig": scaling,
            "subnets": given["subnets"],
            "amiType": given.get("amiType") or "AL2023_x86_64_STANDARD",
            "nodeRole": given["nodeRole"],
            "labels": dict(given.get("labels") or {}),
            "taints": list(given.get("taints") or []),
            "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{secrets.token_hex(8)}"}]},
            "health": {"issues": []},
            "updateConfig": given.get("updateConfig") or {"maxUnavailable": 1},
            "tags": dict(given.get("tags") or {}),
        }
        if "launchTemplate" in given:
            made["launchTemplate"] = given["launchTemplate"]
        made["instanceTypes"] = given.get("instanceTypes") or ["t3.medium"]
        made["diskSize"] = given.get("diskSize") or 20
        cluster.nodegroups[name] = made
        if (
            given["nodeRole"] not in cluster.entries
            and cluster.data["accessConfig"]["authenticationMode"] != "CONFIG_MAP"
        ):
            self.add_entry(cluster, question, given["nodeRole"], kind="EC2_LINUX")
        tries = self.waits["node group"]
        self.clock.after(tries, lambda: self._joined(question, cluster, made, tries))
        return {"nodegroup": made}

    def describe_nodegroup(self, question: Question) -> dict[str, Any]:
        return {"nodegroup": self._nodegroup(question)[1]}

    def list_nodegroups(self, question: Question) -> dict[str, Any]:
        names = sorted(self.cluster(question).nodegroups)
        part, token = page(names, question.parameters, self.amazon.page_size)
        return {"nodegroups": part, "nextToken": token}

    def delete_nodegroup(self, question: Question) -> dict[str, Any]:
        cluster, found = self._nodegroup(question)
        if found["status"] == "DELETING":
            words = f"Nodegroup {found['nodegroupName']} is already being deleted"
            raise Refused(
                "ResourceInUseException",
                words,
                clusterName=cluster.name,
                nodegroupName=found["nodegroupName"],
            )
        found["status"] = "DELETING"

        def gone() -> None:
            name = found["nodegroupName"]
            self.remove_interfaces(question.region, cluster.interfaces.pop(name, []))
            cluster.nodegroups.pop(name, None)
            if not any(each["nodeRole"] == found["nodeRole"] for each in cluster.nodegroups.values()):
                cluster.entries.pop(found["nodeRole"], None)
            self._tell("gone", cluster, found, 0)

        self.clock.after(self.waits["node group gone"], gone)
        return {"nodegroup": found}

    def update_nodegroup_config(self, question: Question) -> dict[str, Any]:
        cluster, found = self._nodegroup(question)
        given = question.parameters
        about = {"clusterName": cluster.name, "nodegroupName": found["nodegroupName"]}
        if found["status"] not in ("ACTIVE", "DEGRADED"):
            words = "Nodegroup cannot be updated as it is currently not in Active State"
            raise Refused("ResourceInUseException", words, **about)
        scaling = found["scalingConfig"] | (given.get("scalingConfig") or {})
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            least, wanted = scaling["minSize"], scaling["desiredSize"]
            words = f"Minimum capacity {least} can't be greater than desired size {wanted}"
            raise Refused("InvalidParameterException", words, **about)
        found["scalingConfig"] = scaling
        labels = given.get("labels") or {}
        found["labels"] |= labels.get("addOrUpdateLabels") or {}
        for each in labels.get("removeLabels") or []:
            found["labels"].pop(each, None)
        found["status"], found["modifiedAt"] = "UPDATING", self.clock.date()
        begun = self.update(cluster, "ConfigUpdate", "node group update", found)
        self.clock.after(self.waits["node group update"], lambda: self._place(question, cluster, found))
        return {"update": begun}

    def _nodegroup(self, question: Question) -> tuple[Cluster, dict[str, Any]]:
        cluster, name = self.cluster(question), question.parameters["nodegroupName"]
        if name not in cluster.nodegroups:
            words = f"No node group found for name: {name}."
            raise Refused("ResourceNotFoundException", words, clusterName=cluster.name, nodegroupName=name)
        return cluster, cluster.nodegroups[name]

    def _joined(self, question: Question, cluster: Cluster, made: dict[str, Any], tried: float) -> None:
        """Let nodes be there, or find out why not; a network without vpc-cni is waited for a while."""
        if made["status"] != "CREATING":
            return
        issue = self.amazon.services.failures.pop(("node group", made["nodegroupName"]), None)
        issue = issue or self._unreachable(question, made)
        ready = (
            cluster.data.get("_self_managed")
            or "vpc-cni" in cluster.addons
            or not made["scalingConfig"]["desiredSize"]
        )
        if issue is None and not ready:
            if tried < self.waits["node group fails"]:
                self.clock.after(TRIES, lambda: self._joined(question, cluster, made, tried + TRIES))
                return
            issue = {"code": "NodeCreationFailure", "message": "Unhealthy nodes in the kubernetes cluster"}
        if issue is not None:
            made["status"] = "CREATE_FAILED"
            made["health"]["issues"] = [
                {"resourceIds": [made["resources"]["autoScalingGroups"][0]["name"]], **issue}
            ]
            return
        made["status"] = "ACTIVE"
        self._place(question, cluster, made)
        self.nodes_came(cluster)

    def _unreachable(self, question: Question, made: dict[str, Any]) -> dict[str, Any] | None:
        """Return the issue of nodes that reach neither the cluster nor the images."""
        if not made["scalingConfig"]["desiredSize"]:
            return None
        ec2 = ec2_backends[ACCOUNT][question.region]
        for subnet in self.subnets(question, made["subnets"], made["clusterName"]):
            tables = [each for each in ec2.route_tables.values() if each.vpc_id == subnet.vpc_id]
            own = [each for each in tables if subnet.id in each._associations.values()]
            table = (own or [each for each in tables if each.main_association_id])[0]
            way = next((each for each in table.routes if each.destination_cidr_block == "0.0.0.0/0"), None)
            if way is None:
                words = "Instances failed to join the kubernetes cluster"
                return {"code": "NodeCreationFailure", "message": words}
            if way.gateway is not None and str(subnet.map_public_ip_on_launch).lower() != "true":
                words = (
                    f"One or more Amazon EC2 Subnets of [{subnet.id}] for node group {made['nodegroupName']} "
                    "does not automatically assign public IP addresses to instances launched into it. If you "
                    "want your instances to be assigned a public IP address, then you need to enable "
                    "auto-assign public IP address for the subnet."
                )
                return {"code": "Ec2SubnetInvalidConfiguration", "message": words}
        return None

    def _place(self, question: Question, cluster: Cluster, found: dict[str, Any]) -> None:
        """Have as many nodes as are wanted: to the network each is an interface."""
        name, wanted = found["nodegroupName"], found["scalingConfig"]["desiredSize"]
        if name not in cluster.nodegroups or found["status"] == "DELETING":
            return
        there = cluster.interfaces.setdefault(name, [])
        self.remove_interfaces(question.region, there[wanted:])
        del there[wanted:]
        subnets = self.subnets(question, found["subnets"], cluster.name)
        group = cluster.data["resourcesVpcConfig"]["clusterSecurityGroupId"]
        for number in range(len(there), wanted):
            subnet = subnets[number % len(subnets)]
            there.append(
                self.interface(question, subnet, group, "", {"cluster.k8s.amazonaws.com/name": cluster.name})
            )
        self._tell("nodes", cluster, found, wanted)

    def _tell(self, event: str, cluster: Cluster, found: dict[str, Any], count: int) -> None:
        backing = self.amazon.backings.get(cluster.name)
        if backing is not None and backing.on_nodes is not None:
            backing.on_nodes(event, found, count)
