"""The network of a cluster: a VPC with subnets in two zones, a way to the internet, and who may reach the
files.

Public subnets cost nothing. Private ones need a NAT gateway, which costs by the hour and by the gigabyte.
Security groups of the control plane and the nodes are made by EKS itself.
"""

from collections.abc import Mapping

from clouds.aws.claims import ClaimedResource
from clouds.aws.plan import Ec2Resource, EksPlan, as_dict
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

CIDR = "10.42.0.0/16"
PUBLIC = ("10.42.0.0/18", "10.42.64.0/18")
PRIVATE = ("10.42.128.0/18", "10.42.192.0/18")
ANYWHERE = "0.0.0.0/0"
NFS = 2049


class Vpc(ClaimedResource):
    """The cluster's network."""

    kind = "AWS::EC2::VPC"
    listing, word = ("describe_vpcs", "Vpcs", "VpcId"), "vpc"

    def __init__(self, plan: EksPlan, depends_on: tuple[str, ...]) -> None:
        super().__init__(plan, "vpc", depends_on)

    def create_one(self) -> str:
        made = self.session.call("ec2", "create_vpc", CidrBlock=CIDR, TagSpecifications=self.specification())
        return made["Vpc"]["VpcId"]

    def prepare(self, identity: str) -> None:
        for attribute in ("EnableDnsSupport", "EnableDnsHostnames"):
            value = {attribute: {"Value": True}}
            self.session.call("ec2", "modify_vpc_attribute", VpcId=identity, **value)

    def remove(self, found: Mapping) -> None:
        self.session.find("ec2", "delete_vpc", VpcId=found["VpcId"])


class VpcSubnet(Ec2Resource):
    """A subnet in one zone; public ones give machines an address that the internet reaches."""

    kind = "AWS::EC2::Subnet"
    listing, word = ("describe_subnets", "Subnets", "SubnetId"), "subnet"

    def __init__(self, plan: EksPlan, vpc: Vpc, number: int, *, public: bool) -> None:
        super().__init__(plan, f"{'' if public else 'private '}subnet {number + 1}", (vpc.name,))
        self.vpc, self.public, self.number = vpc, public, number

    def describe(self) -> ResourceStatus:
        found = self.found()
        if not found:
            return ABSENT
        first = found[0]
        whole = first["State"] == "available" and first["MapPublicIpOnLaunch"] is self.public
        state = ResourceState.READY if whole else ResourceState.PARTIAL
        return self.seen(state, first["SubnetId"], tags=as_dict(first.get("Tags")))

    def create(self) -> None:
        found = self.found()
        if not found:
            role = "elb" if self.public else "internal-elb"
            # Two people at once ask for the same addresses, and only one gets them.
            self.session.call(
                "ec2",
                "create_subnet",
                fine={"InvalidSubnet.Conflict"},
                VpcId=self.vpc.id,
                CidrBlock=(PUBLIC if self.public else PRIVATE)[self.number],
                AvailabilityZone=self.plan.zones[self.number],
                TagSpecifications=self.specification(**{f"kubernetes.io/role/{role}": "1"}),
            )
            found = self.found()
        for each in found if self.public else ():
            self.session.call(
                "ec2",
                "modify_subnet_attribute",
                SubnetId=each["SubnetId"],
                MapPublicIpOnLaunch={"Value": True},
            )

    def delete(self) -> None:
        for each in self.found():
            self.session.find("ec2", "delete_subnet", SubnetId=each["SubnetId"])


class InternetGateway(Ec2Resource):
    """The way to the internet: a gateway, and the main route table's route to it."""

    kind = "AWS::EC2::InternetGateway"
    listing = ("describe_internet_gateways", "InternetGateways", "InternetGatewayId")
    word = "internet-gateway"

    def __init__(self, plan: EksPlan, vpc: Vpc) -> None:
        super().__init__(plan, "internet gateway", (vpc.name,))
        self.vpc = vpc

    def describe(self) -> ResourceStatus:
        found = self.found()
        if not found:
            return ABSENT
        used = next((each for each in found if each.get("Attachments")), None)
        if used is None or len(found) > 1:
            return self.seen(ResourceState.PARTIAL, (used or found[0])["InternetGatewayId"])
        own = used["InternetGatewayId"]
        state = ResourceState.READY if self._routed(own) else ResourceState.PARTIAL
        return self.seen(state, own, tags=as_dict(used.get("Tags")))

    def create(self) -> None:
        found = self.found()
        if not found:
            made = self.session.call("ec2", "create_internet_gateway", TagSpecifications=self.specification())
            found = [made["InternetGateway"]]
        own = next((each["InternetGatewayId"] for each in found if each.get("Attachments")), None)
        if own is None:
            own = found[0]["InternetGatewayId"]
            # A network has one gateway: of two people at once, the second learns of the first's.
            self.session.call(
                "ec2",
                "attach_internet_gateway",
                fine={"Resource.AlreadyAssociated", "InvalidParameterValue"},
                InternetGatewayId=own,
                VpcId=self.vpc.id,
            )
            found = self.found()
            own = next((each["InternetGatewayId"] for each in found if each.get("Attachments")), own)
        for each in found:
            if each["InternetGatewayId"] != own:
                self.session.find(
                    "ec2", "delete_internet_gateway", InternetGatewayId=each["InternetGatewayId"]
                )
        table = self._main_table()
        if table is not None and not self._routed(own):
            self.session.call(
                "ec2",
                "create_route",
                fine={"RouteAlreadyExists"},
                RouteTableId=table["RouteTableId"],
                DestinationCidrBlock=ANYWHERE,
                GatewayId=own,
            )

    def delete(self) -> None:
        for each in self.found():
            own = each["InternetGatewayId"]
            for attached in each.get("Attachments") or []:
                self.session.find(
                    "ec2", "detach_internet_gateway", InternetGatewayId=own, VpcId=attached["VpcId"]
                )
            self.session.find("ec2", "delete_internet_gateway", InternetGatewayId=own)

    def _main_table(self) -> dict | None:
        filters = [
            {"Name": "vpc-id", "Values": [self.vpc.id]},
            {"Name": "association.main", "Values": ["true"]},
        ]
        return next(self.session.every("ec2", "describe_route_tables", "RouteTables", Filters=filters), None)

    def _routed(self, gateway: str) -> bool:
        table = self._main_table() or {}
        return any(each.get("GatewayId") == gateway for each in table.get("Routes", []))


class EfsSecurityGroup(Ec2Resource):
    """Lets the machines of the network, and nobody else, reach the file system."""

    kind = "AWS::EC2::SecurityGroup"
    listing, word = ("describe_security_groups", "SecurityGroups", "GroupId"), "security-group"

    def __init__(self, plan: EksPlan, vpc: Vpc) -> None:
        super().__init__(plan, "security group files", (vpc.name,))
        self.vpc = vpc

    def describe(self) -> ResourceStatus:
        found = self.found()
        if not found:
            return ABSENT
        own = found[0]
        state = ResourceState.READY if own["IpPermissions"] else ResourceState.PARTIAL
        return self.seen(state, own["GroupId"], tags=as_dict(own.get("Tags")))

    def create(self) -> None:
        if not self.found():
            self.session.call(
                "ec2",
                "create_security_group",
                fine={"InvalidGroup.Duplicate"},
                VpcId=self.vpc.id,
                GroupName=self.plan.resource_name("files"),
                Description="NFS from within the network of the cluster",
                TagSpecifications=self.specification(),
            )
        source = {"CidrIp": CIDR, "Description": "the cluster's network"}
        rule = {"IpProtocol": "tcp", "FromPort": NFS, "ToPort": NFS, "IpRanges": [source]}
        for each in self.found():
            self.session.call(
                "ec2",
                "authorize_security_group_ingress",
                fine={"InvalidPermission.Duplicate"},
                GroupId=each["GroupId"],
                IpPermissions=[rule],
            )

    def delete(self) -> None:
        for each in self.found():
            self.session.find("ec2", "delete_security_group", GroupId=each["GroupId"])
