"""EKS: clusters, which take their time, and the rules of who comes before whom.

What is in a cluster is in `eks_nodes` (node groups) and `eks_parts` (add-ons, access, pod identity).
"""

import json
import secrets
from typing import TYPE_CHECKING, Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from .calls import Refused
from .eks_nodes import NodeGroups
from .eks_parts import Parts
from .eks_store import Cluster, eks_backends, page, region
from .identities import ACCOUNT, principal
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAmazon

VERSIONS = {
    "1.33": "EXTENDED_SUPPORT",
    "1.34": "STANDARD_SUPPORT",
    "1.35": "STANDARD_SUPPORT",
    "1.36": "STANDARD_SUPPORT",
}
DEFAULT_VERSION = "1.35"
ADMIN = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
NOWHERE = "https://{id}.gr7.{region}.eks.amazonaws.com"


class Eks(NodeGroups, Parts):
    """The service. A method for each operation, by its name in Python; `tables` lists them."""

    def __init__(self, amazon: "FakeAmazon") -> None:
        self.amazon = amazon
        self.clock, self.waits = amazon.clock, amazon.waits

    def cluster(self, question: Question, *, active: bool = False) -> Cluster:
        """Return the cluster that a call is about.

        Raises:
            AwsError: There is none, or it is not active though it has to be.
        """
        parameters = question.parameters
        name = parameters.get("clusterName") or parameters["name"]
        found = region(question.region).clusters.get(name)
        if found is None or found.hidden > 0:
            if found is not None:
                found.hidden -= 1
            raise Refused(
                "ResourceNotFoundException", f"No cluster found for name: {name}.", clusterName=name
            )
        if active and found.status != "ACTIVE":
            words = f"Cluster '{name}' is not in ACTIVE status"
            raise Refused("InvalidRequestException", words, clusterName=name)
        return found

    def create_cluster(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        name = given["name"]
        clusters = region(question.region).clusters
        if name in clusters:
            raise Refused(
                "ResourceInUseException", f"Cluster already exists with name: {name}", clusterName=name
            )
        version = given.get("version") or DEFAULT_VERSION
        if version not in VERSIONS:
            raise Refused("InvalidParameterException", "unsupported Kubernetes version", clusterName=name)
        self.check_role(given["roleArn"], "eks.amazonaws.com", name)
        vpc = self._network(question, name)
        identity = secrets.token_hex(16).upper()
        arn = f"arn:aws:eks:{question.region}:{ACCOUNT}:cluster/{name}"
        access = {"authenticationMode": "CONFIG_MAP", "bootstrapClusterCreatorAdminPermissions": True}
        access |= given.get("accessConfig") or {}
        data = {
            "name": name,
            "arn": arn,
            "createdAt": self.clock.date(),
            "version": version,
            "roleArn": given["roleArn"],
            "resourcesVpcConfig": vpc,
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "172.20.0.0/16", "ipFamily": "ipv4"},
            "logging": given.get("logging") or {"clusterLogging": []},
            "identity": {
                "oidc": {"issuer": f"https://oidc.eks.{question.region}.amazonaws.com/id/{identity}"}
            },
            "status": "CREATING",
            "certificateAuthority": {},
            "platformVersion": "eks.7",
            "tags": dict(given.get("tags") or {}),
            "health": {"issues": []},
            "accessConfig": access,
            "upgradePolicy": given.get("upgradePolicy") or {"supportType": "EXTENDED"},
            "deletionProtection": given.get("deletionProtection", False),
        }
        made = clusters[name] = Cluster(data, hidden=self.amazon.services.lags.get("eks:CreateCluster", 0))
        self._reach(question, made)
        if access["bootstrapClusterCreatorAdminPermissions"]:
            self.add_entry(made, question, principal(self.amazon.identities.arn(question.key)), policy=ADMIN)
        if given.get("bootstrapSelfManagedAddons", True):
            made.data["_self_managed"] = True
        self.clock.after(self.waits["cluster"], lambda: self._up(question, made, identity))
        return {"cluster": shown(made.data)}

    def catch_up(self) -> None:
        """Let the clusters that were made be seen."""
        for backend in eks_backends[ACCOUNT].values():
            for each in backend.clusters.values():
                each.hidden = 0

    def describe_cluster(self, question: Question) -> dict[str, Any]:
        return {"cluster": shown(self.cluster(question).data)}

    def list_clusters(self, question: Question) -> dict[str, Any]:
        names = []
        for name, each in sorted(region(question.region).clusters.items()):
            if each.hidden > 0:
                each.hidden -= 1
            else:
                names.append(name)
        part, token = page(names, question.parameters, self.amazon.page_size)
        return {"clusters": part, "nextToken": token}

    def delete_cluster(self, question: Question) -> dict[str, Any]:
        found = self.cluster(question)
        about = {"clusterName": found.name}
        if found.nodegroups:
            first = next(iter(found.nodegroups))
            raise Refused(
                "ResourceInUseException", "Cluster has nodegroups attached", nodegroupName=first, **about
            )
        if found.data.get("deletionProtection"):
            words = "Cannot delete a cluster that has deletion protection enabled"
            raise Refused("InvalidRequestException", words, **about)
        if found.status not in ("ACTIVE", "FAILED"):
            words = f"Cannot delete cluster {found.name}: it currently has an update in progress"
            raise Refused("ResourceInUseException", words, **about)
        found.data["status"] = "DELETING"
        self.clock.after(self.waits["cluster gone"], lambda: self._gone(question.region, found))
        return {"cluster": shown(found.data)}

    def update_cluster_config(self, question: Question) -> dict[str, Any]:
        found = self.cluster(question)
        if found.status != "ACTIVE":
            words = f"Cannot update cluster {found.name} while its status is {found.status}"
            raise Refused("ResourceInUseException", words, clusterName=found.name)
        given = question.parameters
        for name in ("resourcesVpcConfig", "accessConfig"):
            found.data[name] |= given.get(name) or {}
        for name in ("logging", "deletionProtection", "upgradePolicy"):
            if name in given:
                found.data[name] = given[name]
        found.data["status"] = "UPDATING"
        return {"update": self.update(found, "ConfigUpdate", "cluster update", found.data)}

    def describe_update(self, question: Question) -> dict[str, Any]:
        found = self.cluster(question).updates.get(question.parameters["updateId"])
        if found is None:
            raise Refused(
                "ResourceNotFoundException", f"No update found for ID: {question.parameters['updateId']}"
            )
        return {"update": found}

    def describe_cluster_versions(self, question: Question) -> dict[str, Any]:
        asked = question.parameters.get("clusterVersions")
        rows = [
            {
                "clusterVersion": version,
                "clusterType": "eks",
                "defaultPlatformVersion": "eks.7",
                "defaultVersion": version == DEFAULT_VERSION,
                "status": support.lower().replace("_", "-"),
                "versionStatus": support,
                "kubernetesPatchVersion": f"{version}.1",
            }
            for version, support in reversed(VERSIONS.items())
            if not asked or version in asked
        ]
        part, token = page(rows, question.parameters, self.amazon.page_size)
        return {"clusterVersions": part, "nextToken": token}

    def tag_resource(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        region(question.region).tag_resource(given["resourceArn"], given["tags"])
        return {}

    def untag_resource(self, question: Question) -> dict[str, Any]:
        given = question.parameters
        region(question.region).untag_resource(given["resourceArn"], given["tagKeys"])
        return {}

    def list_tags_for_resource(self, question: Question) -> dict[str, Any]:
        return {"tags": region(question.region).by_arn(question.parameters["resourceArn"]).get("tags", {})}

    def update(self, cluster: Cluster, kind: str, wait: str, thing: dict[str, Any]) -> dict[str, Any]:
        """Begin an update of a thing that is ACTIVE again when it is over; return it."""
        made = {
            "id": secrets.token_hex(16),
            "status": "InProgress",
            "type": kind,
            "params": [],
            "createdAt": self.clock.date(),
            "errors": [],
        }
        cluster.updates[made["id"]] = made

        def done() -> None:
            made["status"] = "Successful"
            if thing["status"] == "UPDATING":
                thing["status"] = "ACTIVE"

        self.clock.after(self.waits[wait], done)
        return made

    def check_role(self, arn: str, service: str, cluster: str) -> None:
        """Refuse a role that is not there, not there *yet*, or that the service may not assume."""
        role = next((each for each in iam_backends[ACCOUNT]["aws"].roles.values() if each.arn == arn), None)
        unseen = role is not None and self.amazon.services.unseen("iam:CreateRole", arn)
        if role is None or unseen or service not in json.dumps(role.assume_role_policy_document):
            words = (
                f"Role with arn: {arn}, could not be assumed because it does not exist or the trusted entity "
                "is not correct"
            )
            if service == "ec2.amazonaws.com":
                words = (
                    "Following required service principals [ec2.amazonaws.com] were not found in the trust "
                    f"relationships of nodeRole {arn}"
                )
            raise Refused("InvalidParameterException", words, clusterName=cluster)

    def subnets(self, question: Question, ids: list[str], cluster: str) -> list[Any]:
        """Return moto's subnets of these ids."""
        ec2 = ec2_backends[ACCOUNT][question.region]
        try:
            return [ec2.get_subnet(each) for each in ids]
        except ServiceException as error:
            words = f"The subnet ID '{ids[0]}' does not exist (Service: Ec2, Status Code: 400)"
            raise Refused("InvalidParameterException", words, clusterName=cluster) from error

    def interface(self, question: Question, subnet: Any, group: str, description: str, tags: dict) -> str:
        """Make a network interface, as services do in a user's network; return its id."""
        ec2 = ec2_backends[ACCOUNT][question.region]
        made = ec2.create_network_interface(subnet, [], group_ids=[group], description=description, tags=tags)
        made.requester_managed, made.status = True, "in-use"
        return made.id

    def remove_interfaces(self, where: str, ids: list[str]) -> None:
        """Delete such interfaces."""
        for each in ids:
            ec2_backends[ACCOUNT][where].enis.pop(each, None)

    def _network(self, question: Question, name: str) -> dict[str, Any]:
        given = question.parameters["resourcesVpcConfig"]
        subnets = self.subnets(question, given.get("subnetIds") or [], name)
        if len({each.availability_zone for each in subnets}) < 2:
            words = "Subnets specified must be in at least two different AZs"
            raise Refused("InvalidParameterException", words, clusterName=name)
        return {
            "subnetIds": [each.id for each in subnets],
            "securityGroupIds": given.get("securityGroupIds") or [],
            "vpcId": subnets[0].vpc_id,
            "endpointPublicAccess": given.get("endpointPublicAccess", True),
            "endpointPrivateAccess": given.get("endpointPrivateAccess", False),
            "publicAccessCidrs": given.get("publicAccessCidrs") or ["0.0.0.0/0"],
        }

    def _reach(self, question: Question, made: Cluster) -> None:
        """Make the group and the interfaces by which the control plane is in the user's network."""
        config, name = made.data["resourcesVpcConfig"], made.name
        ec2 = ec2_backends[ACCOUNT][question.region]
        words = "EKS created security group applied to ENI that is attached to EKS Control Plane master nodes"
        tags = {f"kubernetes.io/cluster/{name}": "owned", "aws:eks:cluster-name": name}
        called = f"eks-cluster-sg-{name}-{secrets.randbelow(10**9)}"
        group = ec2.create_security_group(called, words, config["vpcId"], tags={**tags, "Name": called})
        config["clusterSecurityGroupId"] = group.id
        made.interfaces[""] = [
            self.interface(question, ec2.get_subnet(each), group.id, f"Amazon EKS {name}", tags)
            for each in config["subnetIds"][:2]
        ]

    def _up(self, question: Question, made: Cluster, identity: str) -> None:
        backing = self.amazon.backings.get(made.name)
        if backing is None:
            made.data["endpoint"] = NOWHERE.format(id=identity, region=question.region)
            made.data["certificateAuthority"] = {"data": "Tm8gY2x1c3RlciBzdGFuZHMgYmVoaW5kIHRoaXMu"}
        else:
            made.data["endpoint"] = backing.endpoint
            made.data["certificateAuthority"] = {"data": backing.ca}
        issue = self.amazon.services.failures.pop(("cluster", made.name), None)
        made.data["status"] = "FAILED" if issue else "ACTIVE"
        made.data["health"]["issues"] = [issue] if issue else []

    def _gone(self, where: str, found: Cluster) -> None:
        self.remove_interfaces(where, found.interfaces.pop("", []))
        group = found.data["resourcesVpcConfig"]["clusterSecurityGroupId"]
        ec2 = ec2_backends[ACCOUNT][where]
        if not any(group in [each.id for each in eni.group_set] for eni in ec2.enis.values()):
            ec2.groups[found.data["resourcesVpcConfig"]["vpcId"]].pop(group, None)
        region(where).clusters.pop(found.name, None)


def shown(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the API shows of a thing."""
    return {key: value for key, value in data.items() if not key.startswith("_")}
