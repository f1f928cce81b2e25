"""The way to the internet for machines without a public address: a NAT gateway in a public subnet, its
address, and the routes to it. It costs by the hour and by the gigabyte, also when nothing uses it.
"""

from collections.abc import Mapping

from clouds.aws.claims import ClaimedResource
from clouds.aws.network import ANYWHERE, Vpc, VpcSubnet
from clouds.aws.plan import Ec2Resource, EksPlan, as_dict
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

STATES = {
    "pending": ResourceState.PENDING,
    "available": ResourceState.READY,
    "failed": ResourceState.FAILED,
    "deleting": ResourceState.DELETING,
}


class NatAddress(ClaimedResource):
    """The public address that all machines of the private subnets share."""

    kind, word = "AWS::EC2::EIP", "elastic-ip"
    listing = ("describe_addresses", "Addresses", "AllocationId")
    hourly_cost = "0.005 $ an hour"

    def __init__(self, plan: EksPlan, vpc: Vpc) -> None:
        super().__init__(plan, "nat address", (vpc.name,))

    def create_one(self) -> str:
        made = self.session.call(
            "ec2", "allocate_address", Domain="vpc", TagSpecifications=self.specification()
        )
        return made["AllocationId"]

    def remove(self, found: Mapping) -> None:
        self.session.find("ec2", "release_address", AllocationId=found["AllocationId"])


class NatGateway(Ec2Resource):
    """The gateway."""

    kind, word, expected, expected_gone = "AWS::EC2::NatGateway", "natgateway", 100.0, 60.0
    listing = ("describe_nat_gateways", "NatGateways", "NatGatewayId")
    hourly_cost = "0.045 $ an hour, and as much a GB"

    def __init__(
        self, plan: EksPlan, subnet: VpcSubnet, address: NatAddress, depends_on: tuple[str, ...]
    ) -> None:
        super().__init__(plan, "nat gateway", (subnet.name, address.name, *depends_on))
        self.subnet, self.address = subnet, address

    def found(self) -> list[dict]:
        return [each for each in super().found() if each["State"] != "deleted"]  # they are seen for an hour

    def describe(self) -> ResourceStatus:
        found = self.found()
        if not found:
            return ABSENT
        own = found[0]
        words = own.get("FailureMessage", "")
        return self.seen(STATES[own["State"]], own["NatGatewayId"], words, as_dict(own.get("Tags")))

    def create(self) -> None:
        self.session.call(
            "ec2",
            "create_nat_gateway",
            # The address can be given to one gateway: of two people at once, the second is told so.
            fine={"Resource.AlreadyAssociated", "InvalidParameterValue", "IdempotentParameterMismatch"},
            ClientToken=self.address.id,
            SubnetId=self.subnet.id,
            AllocationId=self.address.id,
            TagSpecifications=self.specification(),
        )

    def delete(self) -> None:
        for each in self.found():
            if each["State"] != "deleting":
                self.session.find("ec2", "delete_nat_gateway", NatGatewayId=each["NatGatewayId"])


class PrivateRoutes(ClaimedResource):
    """The route table of the private subnets."""

    kind, word = "AWS::EC2::RouteTable", "route-table"
    listing = ("describe_route_tables", "RouteTables", "RouteTableId")

    def __init__(self, plan: EksPlan, vpc: Vpc, subnets: list[VpcSubnet], gateway: NatGateway) -> None:
        super().__init__(plan, "private routes", (gateway.name, *(each.name for each in subnets)))
        self.vpc, self.subnets, self.gateway = vpc, subnets, gateway

    def create_one(self) -> str:
        made = self.session.call(
            "ec2", "create_route_table", VpcId=self.vpc.id, TagSpecifications=self.specification()
        )
        return made["RouteTable"]["RouteTableId"]

    def is_whole(self, found: Mapping) -> bool:
        leads = any(each.get("NatGatewayId") for each in found["Routes"])
        return leads and len(found["Associations"]) == len(self.subnets)

    def prepare(self, identity: str) -> None:
        self.session.call(
            "ec2",
            "create_route",
            fine={"RouteAlreadyExists"},
            RouteTableId=identity,
            DestinationCidrBlock=ANYWHERE,
            NatGatewayId=self.gateway.id,
        )
        for each in self.subnets:
            self.session.call(
                "ec2",
                "associate_route_table",
                fine={"Resource.AlreadyAssociated"},
                RouteTableId=identity,
                SubnetId=each.id,
            )

    def remove(self, found: Mapping) -> None:
        for each in found["Associations"]:
            self.session.find(
                "ec2", "disassociate_route_table", AssociationId=each["RouteTableAssociationId"]
            )
        self.session.find("ec2", "delete_route_table", RouteTableId=found["RouteTableId"])
