"""What an EKS cluster costs: by AWS's price list and its spot market, or else by the kit's own dated table.

The price list is in one region for all of them; that it may not be asked, or does not answer, keeps nobody
from starting: the table below the sums then says whose figure it is.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from statistics import median

from clouds.aws.plan import EksPlan
from clouds.aws.session import AwsSession
from clouds.price_table import HOURS_A_MONTH, Estimate, Price, price_table
from kitlib.errors import KitError

LIST_REGION = "us-east-1"
FILES_GB = 10  # what the course puts on its file system, with room
STAYS_FILES = "a file system outlives the cluster, so that nobody loses what is on it"
STAYS_NETWORK = "the network outlives the cluster"
SPOT = "a spot price moves, and a spot node may be taken away at any time"
TRAFFIC = "traffic out of AWS and between zones is not in it: a few cents for the course"

# Where the price list has each of them: its service, attributes that find it, and how its usage type ends
# (it begins with a short name of the region, but for us-east-1).
_CONTROL_PLANE = ("AmazonEKS", {"operation": "CreateOperation"}, "AmazonEKS-Hours:perCluster")
_DISK = ("AmazonEC2", {"productFamily": "Storage", "volumeApiName": "gp3"}, "EBS:VolumeUsage.gp3")
_NAT = ("AmazonEC2", {"productFamily": "NAT Gateway"}, "NatGateway-Hours")
_ADDRESS = ("AmazonVPC", {}, "PublicIPv4:InUseAddress")
_FILES = ("AmazonEFS", {"storageClass": "General Purpose"}, "TimedStorage-ByteHrs")
_MACHINE = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


def estimate(plan: EksPlan, *, hours: float) -> Estimate:
    """Estimate the price of a cluster.

    Args:
        plan: The cluster.
        hours: For which it is meant to live.
    """
    asked = _Prices(plan.session)
    machines = sum(each.nodes for each in plan.groups)
    gigabytes = sum(each.nodes * each.disk_gb for each in plan.groups)
    prices = [
        asked.listed("EKS control plane", _CONTROL_PLANE),
        *(asked.machine(each.instance_type, each.nodes, spot=each.spot) for each in plan.groups),
        asked.listed("EBS gp3", _DISK, what="disks, a gigabyte", count=gigabytes, monthly=True),
        asked.listed("EFS", _FILES, what="EFS, a gigabyte", count=FILES_GB, monthly=True, stays=STAYS_FILES),
    ]
    if plan.private:
        prices.append(asked.listed("NAT gateway", _NAT, stays=STAYS_NETWORK))
        prices.append(asked.listed("public IPv4 address", _ADDRESS, stays=STAYS_NETWORK))
    else:
        prices.append(asked.listed("public IPv4 address", _ADDRESS, count=machines))
    about = f'cluster "{plan.cluster}" in {plan.session.region}'
    notes = (TRAFFIC, *([SPOT] if any(each.spot for each in plan.groups) else []))
    return Estimate(about, tuple(each for each in prices if each.count), hours, notes)


def price_of_nodes(session: AwsSession, *, instance_type: str, nodes: int, spot: bool = False) -> Price:
    """Price more nodes, without their disks."""
    return _Prices(session).machine(instance_type, nodes, spot=spot)


class _Prices:
    """The price list, asked as long as it answers."""

    def __init__(self, session: AwsSession) -> None:
        self.session = session
        self.list = AwsSession(LIST_REGION, session.profile)
        self.table = price_table("amazon")
        self.answers = True

    def listed(
        self,
        key: str,
        where: tuple[str, Mapping[str, str], str],
        *,
        what: str = "",
        count: float = 1,
        monthly: bool = False,
        stays: str = "",
    ) -> Price:
        """Return a price by the list, or by the kit's table, in which it is called ``key``."""
        service, attributes, ending = where
        figure = self._ask(service, attributes, ending)
        if figure is None:
            return self.table.price(key, what=what, count=count, stays=stays)
        figure = figure / HOURS_A_MONTH if monthly else figure
        return self._said(what or key, figure, count, f"price list of {self.session.region}", stays)

    def machine(self, kind: str, count: int, *, spot: bool = False) -> Price:
        """Return the price of instances."""
        what = f"node {kind}{', spot' if spot else ''}"
        if spot:
            figure, source = self._spot(kind), f"spot market of {self.session.region}, the dearest zone"
        else:
            figure = self._ask("AmazonEC2", {"instanceType": kind, **_MACHINE}, f"BoxUsage:{kind}")
            source = f"price list of {self.session.region}"
        if figure is None:
            return self.table.price(kind, what=what, count=count, spot=spot)
        return self._said(what, figure, count, source)

    def _said(self, what: str, figure: float, count: float, source: str, stays: str = "") -> Price:
        return Price(what, figure, count, source, datetime.now(UTC).date(), stays)

    def _ask(self, service: str, attributes: Mapping[str, str], ending: str) -> float | None:
        """Return dollars for a unit; None if the list does not tell, and then it is asked no more."""
        if not self.answers:
            return None
        wanted = {"regionCode": self.session.region, **attributes}
        filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
        try:
            found = self.list.every(
                "pricing", "get_products", "PriceList", ServiceCode=service, Filters=filters
            )
            return next(filter(None, (_dollars(json.loads(each), ending) for each in found)), None)
        except KitError:
            self.answers = False
            return None

    def _spot(self, kind: str) -> float | None:
        """Return the price in the dearest zone over the last hour."""
        try:
            history = list(
                self.session.every(
                    "ec2",
                    "describe_spot_price_history",
                    "SpotPriceHistory",
                    InstanceTypes=[kind],
                    ProductDescriptions=["Linux/UNIX"],
                    StartTime=datetime.now(UTC) - timedelta(hours=1),
                )
            )
        except KitError:
            return None
        zones: dict[str, list[float]] = {}
        for each in history:
            zones.setdefault(each.get("AvailabilityZone", ""), []).append(float(each["SpotPrice"]))
        return max(map(median, zones.values()), default=None)


def _dollars(product: dict, ending: str) -> float | None:
    usage = product["product"]["attributes"].get("usagetype", "")
    if usage != ending and not usage.endswith(f"-{ending}"):
        return None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            figure = float(dimension["pricePerUnit"].get("USD", 0))
            if figure > 0:
                return figure
    return None
