"""What the account may still have in a region: its quotas, less what there is already.

Quotas are counted in vCPUs for a family of instances, and in pieces for the rest. What is this cluster's own
is not counted, so that a creation which was interrupted can go on.
"""

import re
from collections.abc import Iterable

from clouds import tags
from clouds.aws.instance_types import instance_type
from clouds.aws.session import AwsSession
from clouds.cluster_preflight import failed, warn
from kitlib.clusters.checks import Check, ok

# By the letters that a type begins with: what Service Quotas calls the family, and the codes of its quotas of
# vCPUs, on demand and spot. https://docs.aws.amazon.com/general/latest/gr/ec2-service.html
STANDARD = ("Standard", "L-1216C47A", "L-34B43A08")
_GPUS = ("G and VT", "L-DB2E81BA", "L-3819A6DF")
FAMILIES = {
    "g": _GPUS,
    "gr": _GPUS,
    "vt": _GPUS,
    "p": ("P", "L-417A185B", "L-7212CCBC"),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "dl": ("DL", "L-6E869C2A", "L-85EED4F7"),
    "f": ("F", "L-74FC7D96", "L-88CF9481"),
    "x": ("X", "L-7295265B", "L-E3A00192"),
}
NEARLY = 0.8  # of a quota: a node that is replaced is there twice for a while


def family(kind: str, *, spot: bool = False) -> tuple[str, str]:
    """Return the name and the code of the quota that a type counts against.

    Example:
        >>> family("g4dn.xlarge")
        ('G and VT', 'L-DB2E81BA')
    """
    if spot and kind.startswith("p5"):
        return "P5", "L-C4BD4855"
    letters = re.match(r"[a-z]+?(?=\d|-)", kind)
    name, on_demand, as_spot = FAMILIES.get(letters[0] if letters else "", STANDARD)
    return name, as_spot if spot else on_demand


class Quotas:
    """Looks at the quotas that one cluster needs.

    Args:
        session: Of the region.
        cluster: The name of the cluster: what carries its tag is not counted.
    """

    def __init__(self, session: AwsSession, cluster: str) -> None:
        self.session, self.cluster = session, cluster
        self._cpus: dict[str, int] = {}

    def vcpus(self, wanted: Iterable[tuple[str, int, bool]]) -> Iterable[Check]:
        """Yield a check for each quota of vCPUs that is needed.

        Args:
            wanted: Type, how many, whether as spot instances.
        """
        needed: dict[tuple[str, str, bool], int] = {}
        kinds: dict[tuple[str, str, bool], list[str]] = {}
        for kind, count, spot in wanted:
            key = (*family(kind, spot=spot), spot)
            needed[key] = needed.get(key, 0) + self._vcpus(kind) * count
            kinds.setdefault(key, []).append(f"{count} × {kind}")
        running = self._running()
        for key, vcpus in needed.items():
            name, code, spot = key
            what = f"vCPUs of {name} instances, {'spot' if spot else 'on demand'}"
            yield self._judge(
                "ec2",
                code,
                what,
                vcpus,
                running.get(key, 0),
                f"{' and '.join(kinds[key])} need {vcpus}",
                name,
            )

    def pieces(self, *, clusters: bool = True, addresses: int = 0) -> Iterable[Check]:
        """Yield a check for networks, clusters and reserved addresses.

        Args:
            clusters: Whether one more cluster is needed: not if it is there already.
            addresses: How many reserved addresses are needed.
        """
        vpcs = list(self.session.every("ec2", "describe_vpcs", "Vpcs"))
        if not any(self._own(each) for each in vpcs):
            yield self._judge("vpc", "L-F678F1CE", "networks (VPCs)", 1, len(vpcs), "1 is needed")
        if addresses:
            every = list(self.session.every("ec2", "describe_addresses", "Addresses"))
            there = [each for each in every if not self._own(each)]
            words = f"{addresses} is needed"
            yield self._judge("ec2", "L-0263D0A3", "elastic IPs", addresses, len(there), words)
        if clusters:
            there = list(self.session.every("eks", "list_clusters", "clusters"))
            yield self._judge("eks", "L-1194D53C", "EKS clusters", 1, len(there), "1 is needed")

    def _judge(
        self, service: str, code: str, what: str, needed: int, used: int, why: str, family_name: str = ""
    ) -> Check:
        about = f"quota of {what}"
        limit = self._limit(service, code)
        if limit is None:
            return warn(about, f"AWS does not tell it; {why}", self._link(service, code, needed + used))
        words = f"{why}; of {limit:g}, {used} are taken"
        if needed + used > limit:
            fix = self._link(service, code, needed + used)
            if family_name and (others := self._others(family_name)):
                fix += f"\nor instance_type={others}"
            return failed(about, words, fix)
        if needed + used > limit * NEARLY and needed + used > 5:
            return warn(about, f"{words}: nothing is left", self._link(service, code, 2 * (needed + used)))
        return ok(about, words)

    def _limit(self, service: str, code: str) -> float | None:
        """Return the account's quota, or AWS's default where the account has none of its own."""
        for operation in ("get_service_quota", "get_aws_default_service_quota"):
            found = self.session.call(
                "service-quotas",
                operation,
                fine=("NoSuchResourceException",),
                ServiceCode=service,
                QuotaCode=code,
            )
            if found:
                return found["Quota"]["Value"]
        return None

    def _link(self, service: str, code: str, value: int) -> str:
        region = self.session.region
        page = f"{region}.console.aws.amazon.com/servicequotas/home/services/{service}/quotas/{code}"
        return (
            f"https://{page}, or: aws service-quotas request-service-quota-increase "
            f"--service-code {service} --quota-code {code} --desired-value {value} --region {region}; "
            "it takes minutes to days"
        )

    def _others(self, name: str) -> str:
        """Return types of another family: with a GPU there is none, so these train on their CPUs."""
        return '"m5.xlarge", which has no GPU' if name in ("G and VT", "P") else ""

    def _running(self) -> dict[tuple[str, str, bool], int]:
        """Return the vCPUs that run, by quota."""
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        found = self.session.every("ec2", "describe_instances", "Reservations", Filters=states)
        there = [
            (each["InstanceType"], each.get("InstanceLifecycle") == "spot")
            for reservation in found
            for each in reservation["Instances"]
            if not self._own(each)
        ]
        taken: dict[tuple[str, str, bool], int] = {}
        for kind, spot in there:
            key = (*family(kind, spot=spot), spot)
            taken[key] = taken.get(key, 0) + self._vcpus(kind)
        return taken

    def _vcpus(self, kind: str) -> int:
        if kind not in self._cpus:
            self._cpus[kind] = instance_type(self.session, kind).cpus
        return self._cpus[kind]

    def _own(self, described: dict) -> bool:
        given = {each["Key"]: each["Value"] for each in described.get("Tags", [])}
        mine = tags.read(given)
        return (
            given.get("eks:cluster-name") == self.cluster or (mine and mine.cluster == self.cluster) or False
        )
