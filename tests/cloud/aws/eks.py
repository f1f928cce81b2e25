"""EKS: clusters and what is in them, as plain data in the shapes of the API, in time and with issues.

Every kind has the same four operations; `KINDS` says what is different. Stacks create through the same API.
"""

import base64
import json
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from moto.core.base_backend import BackendDict, BaseBackend
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from .faults import ACCOUNT, Refused, principal
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAws

VERSIONS = ("1.36", "1.35", "1.34", "1.33")
MASTERS = "AmazonEKSClusterAdminPolicy"
ADDONS = (
    "vpc-cni",
    "kube-proxy",
    "eks-pod-identity-agent",
)  # active without a node, which the others wait for
BUSY = ("CREATING", "UPDATING", "DELETING")


class Kind(NamedTuple):
    """A kind of things: its words in operations and answers; how long it takes to come and to go."""

    noun: str
    member: str
    key: str
    many: str
    arn: str
    seconds: tuple[float, float] = (0, 0)


_EVERY = (
    Kind("Cluster", "cluster", "name", "clusters", "arn", (540, 150)),
    Kind("Nodegroup", "nodegroup", "nodegroupName", "nodegroups", "nodegroupArn", (150, 240)),
    Kind("Addon", "addon", "addonName", "addons", "addonArn", (30, 20)),
    Kind("AccessEntry", "accessEntry", "principalArn", "accessEntries", "accessEntryArn"),
    Kind("PodIdentityAssociation", "association", "associationId", "associations", "associationArn"),
)
KINDS = {kind.noun: kind for kind in _EVERY}


class EksBackend(BaseBackend):
    """The things of a region by (cluster, noun, name)."""

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.things: dict[tuple[str, str, str], dict[str, Any]] = {}


eks_backends = BackendDict(EksBackend, "eks")


class Eks:
    """The service."""

    def __init__(self, aws: "FakeAws") -> None:
        self.aws, self.clock = aws, aws.clock
        self.reset()

    def reset(self) -> None:
        """Let nothing fail."""
        self.broken: dict[tuple[str, str], dict[str, Any]] = {}

    def answer(self, question: Question) -> dict[str, Any]:
        """Answer a call."""
        special = getattr(self, re.sub(r"(?<!^)(?=[A-Z])", "_", question.operation).lower(), None)
        if special is not None:
            return special(question)
        verb, noun = re.match(r"([A-Z][a-z]+)(.*)", question.operation).groups()
        kind = KINDS.get(noun.replace("Entries", "Entry").removesuffix("s") if verb == "List" else noun)
        if kind is None or verb not in ("Create", "Describe", "List", "Delete"):
            raise Refused("InternalFailure", f"this fake has no eks:{question.operation}", status=501)
        return getattr(self, f"_{verb.lower()}")(question, kind)

    def _create(self, question: Question, kind: Kind) -> dict[str, Any]:
        fields, things = question.parameters, _things(question)
        name = fields.get(kind.key) or f"a-{secrets.token_hex(8)}"
        cluster = name if kind.noun == "Cluster" else fields["clusterName"]
        if (cluster, kind.noun, name) in things:
            existing = things[cluster, kind.noun, name]
            if existing["_token"] == fields.get("clientRequestToken"):
                return {kind.member: shown(existing)}
            raise Refused("ResourceInUseException", f"{kind.noun} already exists with name: {name}")
        if kind.noun != "Cluster" and self._find(question, "Cluster")["status"] not in ("ACTIVE", "UPDATING"):
            raise Refused("InvalidRequestException", f"Cluster '{cluster}' is not in ACTIVE status")
        members = question.model.output_shape.members[kind.member].members
        body = {key: value for key, value in fields.items() if key in members}
        last = cluster if kind.noun == "Cluster" else f"{cluster}/{secrets.token_hex(8)}"
        body[kind.key], body["createdAt"] = name, self.clock.date()
        body[kind.arn] = f"arn:aws:eks:{question.region}:{ACCOUNT}:{kind.noun.lower()}/{last}"
        body |= {"status": "CREATING", "health": {"issues": []}, "tags": fields.get("tags") or {}}
        body["_token"] = fields.get("clientRequestToken")
        getattr(self, f"_new_{kind.member.lower()}")(question, body)
        things[cluster, kind.noun, name] = body
        if kind.seconds[0]:
            self.clock.after(kind.seconds[0], lambda: self._created(question, kind, body))
        return {kind.member: shown(body)}

    def _describe(self, question: Question, kind: Kind) -> dict[str, Any]:
        return {kind.member: shown(self._find(question, kind.noun))}

    def _list(self, question: Question, kind: Kind) -> dict[str, Any]:
        fields = question.parameters
        whole = kind.noun == "PodIdentityAssociation"
        if kind.noun != "Cluster":
            self._find(question, "Cluster")
        filters = {
            key: fields[key] for key in ("clusterName", "namespace", "serviceAccount") if key in fields
        }
        rows = []
        for (_, noun, name), item in sorted(_things(question).items()):
            if noun == kind.noun and filters.items() <= item.items():
                rows.append(shown(item) if whole else name)
        part, token = page(rows, fields, self.aws.page_size)
        return {kind.many: part, "nextToken": token}

    def _delete(self, question: Question, kind: Kind) -> dict[str, Any]:
        body, things = self._find(question, kind.noun), _things(question)
        cluster = body["name"] if kind.noun == "Cluster" else body["clusterName"]
        key = (cluster, kind.noun, body[kind.key])
        if kind.noun == "Cluster" and any(item[:2] == (cluster, "Nodegroup") for item in things):
            raise Refused("ResourceInUseException", "Cluster has nodegroups attached", clusterName=cluster)
        if kind.seconds[1] and body["status"] in BUSY:
            words = f"{kind.noun} cannot be deleted while its status is {body['status']}"
            raise Refused("ResourceInUseException", words, clusterName=cluster)
        body["status"] = "DELETING"
        self.clock.after(kind.seconds[1], lambda: self._gone(question, key, body))
        return {kind.member: shown(body)}

    # What is special of a kind

    def _new_cluster(self, question: Question, body: dict[str, Any]) -> None:
        name, vpc, ec2 = body["name"], body["resourcesVpcConfig"], ec2_backends[ACCOUNT][question.region]
        if body.setdefault("version", VERSIONS[1]) not in VERSIONS:
            raise Refused("InvalidParameterException", "unsupported Kubernetes version", clusterName=name)
        self._check_role(body["roleArn"], "eks.amazonaws.com")
        subnets = [ec2.get_subnet(subnet) for subnet in vpc.get("subnetIds") or []]
        if len({subnet.availability_zone for subnet in subnets}) < 2:
            words = "Subnets specified must be in at least two different AZs"
            raise Refused("InvalidParameterException", words, clusterName=name)
        tags = {f"kubernetes.io/cluster/{name}": "owned", "aws:eks:cluster-name": name}
        called = f"eks-cluster-sg-{name}-{secrets.randbelow(10**9)}"
        group = ec2.create_security_group(called, "EKS created security group", subnets[0].vpc_id, tags=tags)
        vpc |= {"vpcId": subnets[0].vpc_id, "clusterSecurityGroupId": group.id}
        body["_cards"] = [self._card(question, subnet, group.id, "Amazon EKS", tags) for subnet in subnets]
        body |= {"certificateAuthority": {}, "platformVersion": "eks.7", "_id": secrets.token_hex(16)}

    def _new_nodegroup(self, question: Question, body: dict[str, Any]) -> None:
        self._check_role(body["nodeRole"], "ec2.amazonaws.com")
        _check_scaling(body["scalingConfig"])
        body |= {"version": self._find(question, "Cluster")["version"], "_cards": []}
        body["resources"] = {
            "autoScalingGroups": [{"name": f"eks-{body['nodegroupName']}-{secrets.token_hex(4)}"}]
        }

    def _new_addon(self, question: Question, body: dict[str, Any]) -> None:
        body["podIdentityAssociations"] = []
        for association in question.parameters.get("podIdentityAssociations") or []:
            self._check_role(association["roleArn"], "pods.eks.amazonaws.com")

    def _new_accessentry(self, question: Question, body: dict[str, Any]) -> None:
        arn = body["principalArn"]
        if principal(arn) != arn or ":iam::" not in arn:
            raise Refused("InvalidParameterException", "The principalArn parameter format is not valid")
        body |= {"username": body.get("username") or arn, "type": body.get("type") or "STANDARD"}
        body |= {"kubernetesGroups": body.get("kubernetesGroups") or [], "_policies": {}}

    def _new_association(self, question: Question, body: dict[str, Any]) -> None:
        self._check_role(body["roleArn"], "pods.eks.amazonaws.com")
        account = {key: body[key] for key in ("clusterName", "namespace", "serviceAccount")}
        if any(account.items() <= item.items() for item in _things(question).values()):
            raise Refused("ResourceInUseException", "Association already exists")

    def _created(self, question: Question, kind: Kind, body: dict[str, Any], waited: float = 0) -> None:
        if body["status"] != "CREATING":
            return
        if kind.noun == "Nodegroup" and body[kind.key] in self.aws.launches and waited < 1500:
            self.clock.after(300, lambda: self._created(question, kind, body, waited + 300))
            return
        issue = self.broken.pop((kind.noun, body[kind.key]), None)
        if kind.noun == "Addon" and body["addonName"] not in ADDONS and not self._nodes(question, body):
            if waited < 900 and issue is None:
                self.clock.after(30, lambda: self._created(question, kind, body, waited + 30))
                return
            words = "The add-on is unhealthy because it doesn't have the desired number of replicas."
            issue = issue or {"code": "InsufficientNumberOfReplicas", "message": words}
        body["status"] = "CREATE_FAILED" if issue else "ACTIVE"
        if issue is not None:
            body["health"]["issues"] = [{"resourceIds": [body[kind.arn]], **issue}]
        elif kind.noun == "Cluster":
            backing = self.aws.backings.get(body["name"])
            nowhere = f"https://{body['_id']}.gr7.{question.region}.eks.amazonaws.com"
            body["endpoint"] = backing.endpoint if backing else nowhere
            body["certificateAuthority"] = {"data": backing.ca if backing else "Tm8gY2x1c3Rlci4="}
        elif kind.noun == "Nodegroup":
            self._place(question, body)

    def _gone(self, question: Question, key: tuple[str, str, str], body: dict[str, Any]) -> None:
        cluster, noun, _ = key
        ec2, things = ec2_backends[ACCOUNT][question.region], _things(question)
        for card in body.get("_cards", ()):
            ec2.enis.pop(card, None)
        things.pop(key, None)
        if noun == "Cluster":
            for child in [item for item in things if item[0] == cluster]:
                del things[child]
            group, vpc = (body["resourcesVpcConfig"][key] for key in ("clusterSecurityGroupId", "vpcId"))
            if not any(group in [group.id for group in eni.group_set] for eni in ec2.enis.values()):
                ec2.groups[vpc].pop(group, None)
        elif noun == "Nodegroup":
            self._tell("gone", body, 0)

    def _nodes(self, question: Question, body: dict[str, Any]) -> bool:
        groups = [
            item for key, item in _things(question).items() if key[:2] == (body["clusterName"], "Nodegroup")
        ]
        return any(group["_cards"] for group in groups)

    def _place(self, question: Question, nodegroup: dict[str, Any]) -> None:
        """Have as many nodes as are wanted: to the network each is an interface."""
        ec2, cards = ec2_backends[ACCOUNT][question.region], nodegroup["_cards"]
        sizes = nodegroup["scalingConfig"]
        while len(cards) > sizes["desiredSize"]:
            ec2.enis.pop(cards.pop(), None)
        cluster = _things(question)[nodegroup["clusterName"], "Cluster", nodegroup["clusterName"]]
        group = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
        while len(cards) < sizes["desiredSize"]:
            subnet = ec2.get_subnet(nodegroup["subnets"][len(cards) % len(nodegroup["subnets"])])
            tags = {"cluster.k8s.amazonaws.com/name": nodegroup["clusterName"]}
            cards.append(self._card(question, subnet, group, "", tags))
        self._tell("nodes", nodegroup, len(cards))

    def _tell(self, event: str, group: dict[str, Any], count: int) -> None:
        backing = self.aws.backings.get(group["clusterName"])
        if backing is not None and backing.on_nodes is not None:
            backing.on_nodes(event, group, count)

    # Other operations

    def update_nodegroup_config(self, question: Question) -> dict[str, Any]:
        group = self._find(question, "Nodegroup")
        if group["status"] != "ACTIVE":
            words = "Nodegroup cannot be updated as it is currently not in Active State"
            raise Refused("ResourceInUseException", words, clusterName=group["clusterName"])
        scaling = group["scalingConfig"] | question.parameters["scalingConfig"]
        _check_scaling(scaling)
        group["scalingConfig"] = scaling
        return self._update(group, 60, lambda: self._place(question, group))

    def _update(self, body: dict[str, Any], seconds: float, then: Callable = lambda: None) -> dict[str, Any]:
        body["status"] = "UPDATING"

        def done() -> None:
            if body["status"] == "UPDATING":
                body["status"] = "ACTIVE"
                then()

        self.clock.after(seconds, done)
        return {"update": {"id": secrets.token_hex(16), "status": "InProgress", "type": "ConfigUpdate"}}

    def associate_access_policy(self, question: Question) -> dict[str, Any]:
        entry, fields = self._find(question, "AccessEntry"), question.parameters
        association = {"policyArn": fields["policyArn"], "accessScope": fields["accessScope"]}
        entry["_policies"][fields["policyArn"]] = association
        return {"associatedAccessPolicy": association}

    def list_associated_access_policies(self, question: Question) -> dict[str, Any]:
        return {"associatedAccessPolicies": list(self._find(question, "AccessEntry")["_policies"].values())}

    def describe_cluster_versions(self, question: Question) -> dict[str, Any]:
        rows = [{"clusterVersion": name, "defaultVersion": name == VERSIONS[1]} for name in VERSIONS[:-1]]
        return {"clusterVersions": [row | {"versionStatus": "STANDARD_SUPPORT"} for row in rows]}

    def tag_resource(self, question: Question) -> dict[str, Any]:
        for item in _things(question).values():
            if question.parameters["resourceArn"] in item.values():
                item["tags"] |= question.parameters["tags"]
        return {}

    # Helpers

    def _find(self, question: Question, noun: str) -> dict[str, Any]:
        fields, kind = question.parameters, KINDS[noun]
        cluster = fields.get("clusterName") or fields["name"]
        key = (cluster, noun, cluster if noun == "Cluster" else fields[kind.key])
        if key not in _things(question):
            words = f"No {noun.lower()} found for name: {key[2]}."
            raise Refused("ResourceNotFoundException", words, status=404, clusterName=cluster)
        return _things(question)[key]

    def _check_role(self, arn: str, service: str) -> None:
        if not trusted(arn, service):
            raise Refused("InvalidParameterException", f"Role with arn: {arn}, could not be assumed")

    def _card(self, question: Question, subnet: Any, group: str, description: str, tags: dict) -> str:
        ec2 = ec2_backends[ACCOUNT][question.region]
        card = ec2.create_network_interface(subnet, [], group_ids=[group], description=description, tags=tags)
        card.requester_managed, card.status = True, "in-use"
        return card.id


def role(arn: str) -> Any:
    """Return moto's role of an ARN; None if there is none."""
    return next((item for item in iam_backends[ACCOUNT]["aws"].roles.values() if item.arn == arn), None)


def trusted(arn: str, service: str) -> bool:
    """Return whether a role exists and a service may take it."""
    principal_role = role(arn)
    return principal_role is not None and service in json.dumps(principal_role.assume_role_policy_document)


def page(items: list[Any], fields: dict[str, Any], most: int | None) -> tuple[list[Any], str | None]:
    """Return the part of a list that was asked for, and the token of the next one."""
    start = int(base64.b64decode(fields.get("nextToken") or fields.get("NextToken") or "MA==").decode())
    end = start + (most or 100)
    return items[start:end], base64.b64encode(str(end).encode()).decode() if end < len(items) else None


def shown(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the API shows of a thing."""
    return {key: value for key, value in data.items() if not key.startswith("_")}


def _things(question: Question) -> dict[tuple[str, str, str], dict[str, Any]]:
    return eks_backends[ACCOUNT][question.region].things


def _check_scaling(scaling: dict[str, int]) -> None:
    if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
        words = f"desired capacity {scaling['desiredSize']} must be between minSize and maxSize"
        raise Refused("InvalidParameterException", words)
