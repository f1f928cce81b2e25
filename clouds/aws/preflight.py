"""What is looked at before an EKS cluster is begun: credentials, permissions, quotas, zones, names.

Nothing here changes anything at AWS. What a check is, and how all of them run, is in
`clouds.cluster_preflight`.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from botocore.exceptions import EndpointConnectionError

from clouds import tags
from clouds.aws import permissions
from clouds.aws.client_errors import AwsError
from clouds.aws.instance_types import instance_type, instead, zones_with
from clouds.aws.network import CIDR
from clouds.aws.plan import EksPlan
from clouds.aws.quotas import Quotas
from clouds.aws.session import AwsSession
from clouds.aws.versions import check_version
from clouds.cluster_preflight import ClusterPreflight, Probe, failed, warn
from kitlib.clusters.checks import Check, Report, ok

# Where the account itself is asked, whatever region was chosen; a region that is not enabled answers nobody.
HOMES = {"aws": "us-east-1", "aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}
METHODS = {
    "env": "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "shared-credentials-file": "the file of credentials",
    "config-file": "the configuration file",
    "custom-process": "a program that the profile names",
    "assume-role": "a role that the profile assumes",
    "assume-role-with-web-identity": "a role, by a web identity's token (AWS_WEB_IDENTITY_TOKEN_FILE)",
    "sso": "a sign-in by IAM Identity Center",
    "login": "a sign-in by aws login",
    "container-role": "the role of this container",
    "iam-role": "the role of this EC2 instance",
}
# What a cluster cannot do without, with something that each may be asked.
SERVICES = {
    "eks": "list_clusters",
    "efs": "describe_file_systems",
    "scheduler": "list_schedule_groups",
    "logs": "describe_log_groups",
}
USUAL = "us-east-1"  # which has every service
SKEW_SECONDS = 60  # AWS refuses requests that are off by more than 300
ZONES = 2


def check(plan: EksPlan) -> Report:
    """Look at all that may stand in the way of a cluster, and return what was found.

    Args:
        plan: The cluster.
    """
    return EksPreflight(plan).report()


class EksPreflight(ClusterPreflight):
    """The checks of one plan.

    Args:
        plan: The cluster.
    """

    kind = "an EKS cluster"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, plan.session.region)
        home = HOMES.get(plan.session.partition, plan.session.region)
        there = plan.session.region == home
        self.home = plan.session if there else AwsSession(home, plan.session.profile)
        self.quotas = Quotas(plan.session, plan.cluster)

    def probes(self) -> list[Probe]:
        return [
            Probe("credentials", self.credentials, stops=True),
            Probe("clock", self.clock, needed=False),
            Probe("region", self.region, stops=True),
            Probe("services", self.services, stops=True),
            Probe("name", self.name),
            Probe("version", self.version),
            Probe("instance types", self.types, stops=True),
            Probe("zones", self.zones, needed=False),
            Probe("permissions", lambda: permissions.check(self.home)),
            Probe("quotas", self.vcpus, needed=False),
            Probe("quotas", self.pieces, needed=False),
            Probe("addresses", self.addresses, needed=False),
        ]

    def credentials(self) -> Check:
        """Return which credentials win, and whose they are."""
        found = self.home.credentials
        arn = self.home.identity["Arn"]
        method = METHODS.get(found.method, found.method)
        profile = f', profile "{self.session.profile}"' if self.session.profile else ""
        return ok("credentials", f"{method}{profile}: {arn}")

    def clock(self) -> Check:
        """Check the difference of this machine's clock to AWS's."""
        told = self.home.identity["ResponseMetadata"]["HTTPHeaders"].get("date")
        if not told:
            return warn(
                "clock", "AWS does not tell the time", "see that this machine's clock is right: date -u"
            )
        off = (datetime.now(UTC) - parsedate_to_datetime(told)).total_seconds()
        if abs(off) > SKEW_SECONDS:
            words = f"it is {abs(off):.0f} seconds {'ahead' if off > 0 else 'behind'}; AWS bears 300"
            return warn("clock", words, "set it: sudo chronyc makestep, or timedatectl set-ntp true")
        return ok("clock", "right")

    def region(self) -> Check:
        """Check whether the account may use the region."""
        region = self.session.region
        found = self.home.call("ec2", "describe_regions", AllRegions=True)["Regions"]
        state = next((each.get("OptInStatus", "") for each in found if each["RegionName"] == region), None)
        if state == "not-opted-in":
            others = _some(each["RegionName"] for each in found if each.get("OptInStatus") != state)
            fix = f"aws account enable-region --region-name {region}, which takes a while, or one of {others}"
            return failed("region", f"{region} is not enabled in this account", fix)
        if state is None:
            return failed("region", f"the account has no region {region}", "take one of those that it has")
        return ok("region", f"{region} is enabled")

    def services(self) -> Iterable[Check]:
        """Yield whether the services that a cluster needs answer: a region may not have them all."""
        silent = []
        for service, operation in SERVICES.items():
            try:
                self.session.call(service, operation)
            except AwsError as error:  # who is refused has been answered
                if isinstance(error.__cause__, EndpointConnectionError):
                    silent.append(service)
        region = self.session.region
        if silent:
            words = f"nothing answers as {', '.join(silent)} in {region}"
            here = f'see that this machine is online; if it is, take another region, such as region="{USUAL}"'
            yield failed("services", f"{words}: the region has no such service, or it is not reached", here)
        else:
            yield ok("services", f"{', '.join(SERVICES)} answer in {region}")

    def name(self) -> Check:
        """Check whether the cluster's name is free."""
        name = self.plan.cluster
        found = self.session.find("eks", "describe_cluster", name=name)
        if found is None:
            return ok("name", f"{name} is free")
        return self.taken(tags.read(found["cluster"].get("tags", {})))

    def version(self) -> Check:
        """Check whether EKS has the version of Kubernetes at its normal price."""
        check_version(self.plan)
        return ok("version", f"Kubernetes {self.plan.version}")

    def types(self) -> Iterable[Check]:
        """Yield for each node group whether its type exists, and its image runs there."""
        for group in self.plan.groups:
            found = instance_type(self.session, group.instance_type)
            gpus = f", {found.gpus} GPU{'s' * (found.gpus != 1)}" if found.gpus else ""
            arm = ", processors of ARM: an image has to be built for them" if found.arm else ""
            yield ok(f"instance type {found.name}", f"{found.cpus} vCPUs{gpus}{arm}")

    def zones(self) -> Iterable[Check]:
        """Yield for each node group which zones offer its type."""
        for kind in dict.fromkeys(each.instance_type for each in self.plan.groups):
            name, zones = f"zones with {kind}", zones_with(self.session, kind)
            chosen = set(zones) & set(self.plan.zones)
            if len(zones) >= ZONES and (chosen or not any(self.plan.zones)):
                yield ok(name, ", ".join(zones))
                continue
            others = " or ".join(f'"{each}"' for each in instead(self.session, kind)) or "another type"
            if not zones:
                yield failed(name, f"no zone of {self.session.region} has it", f"instance_type={others}")
            elif any(self.plan.zones) and not chosen:
                words = f"{', '.join(zones)}, and the cluster would be in {', '.join(self.plan.zones)}"
                yield failed(name, words, f"instance_type={others}")
            else:
                words = f"{zones[0]} alone: when it has none left, there is no other zone"
                yield warn(name, words, f"instance_type={others}")

    def vcpus(self) -> Iterable[Check]:
        """Return the quotas of the nodes."""
        return self.quotas.vcpus((each.instance_type, each.nodes, each.spot) for each in self.plan.groups)

    def pieces(self) -> Iterable[Check]:
        """Return the quotas of the network and of clusters."""
        return self.quotas.pieces(clusters=not self.there, addresses=int(self.plan.private))

    def addresses(self) -> Check:
        """Check whether another network has the same addresses: the two could never be joined."""
        own = ipaddress.ip_network(CIDR)
        for each in self.session.every("ec2", "describe_vpcs", "Vpcs"):
            given = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
            mine = tags.read(given)
            if mine and mine.cluster == self.plan.cluster:
                continue
            if own.overlaps(ipaddress.ip_network(each["CidrBlock"])):
                words = f"{CIDR} overlaps {each['CidrBlock']} of {each['VpcId']}"
                return warn(
                    "addresses", words, "nothing to do, unless the two networks are to be joined by peering"
                )
        return ok("addresses", f"{CIDR} is free")


def _some(words: Iterable[str]) -> str:
    found = sorted(words)
    return ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
