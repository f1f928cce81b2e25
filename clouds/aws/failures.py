"""What a node group says when it gets no machines, and what would do instead: zones, types, a larger quota.

What AWS answers to a request is in `client_errors`; this is what it says minutes later.
"""

import re

from clouds.aws.instance_types import instead, zones_with
from clouds.aws.quotas import family
from clouds.aws.session import AwsSession
from kitlib.errors import KitError

_CAPACITY = re.compile(r"Insufficient\w*Capacity|UnfulfillableCapacity|sufficient .{0,40}capacity", re.I)
_QUOTA = re.compile(r"VcpuLimitExceeded|vCPU limit|MaxSpotInstanceCountExceeded|InstanceLimitExceeded", re.I)
_ADDRESSES = re.compile(r"InsufficientFreeAddresses", re.I)


def explained(session: AwsSession, kind: str, words: str, *, spot: bool) -> str:
    """Add an alternative to the words of a node group that could not get machines.

    Args:
        session: Of its region.
        kind: The type of its machines.
        words: Its own.
        spot: Whether they are spot instances.

    Example:
        >>> explained(session, "g4dn.xlarge", "AsgInstanceLaunchFailures: VcpuLimitExceeded", spot=False)
        'AsgInstanceLaunchFailures: VcpuLimitExceeded. …'
    """
    if _QUOTA.search(words):
        name, code = family(kind, spot=spot)
        page = (
            f"https://{session.region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
        )
        return f"{words}. The account may have no more vCPUs of {name} instances: {page}"
    if _CAPACITY.search(words):
        return f"{words}. {_elsewhere(session, kind, spot)}"
    if _ADDRESSES.search(words):
        return f"{words}. The subnets are full: fewer nodes, or delete what else is in them"
    return words


def _elsewhere(session: AwsSession, kind: str, spot: bool) -> str:
    said = ["spot=False, which costs more and is seldom refused"] if spot else []
    try:
        said += [f'instance_type="{each}"' for each in instead(session, kind)]
        zones = zones_with(session, kind)
    except KitError:  # who may not ask is told less
        zones = []
    where = f"; {kind} is offered in {', '.join(zones)}" if zones else ""
    return f"Instead: {', or '.join([*said, 'another region'])}{where}"
