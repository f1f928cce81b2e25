"""Whether EKS has a version of Kubernetes at its normal price. One past its standard support costs six times
as much, and the kit never takes one.
"""

from clouds.aws.plan import EksPlan
from kitlib.errors import BadInput


def check_version(plan: EksPlan) -> None:
    """See that EKS supports the plan's version.

    Raises:
        BadInput: It does not; the error names those that it does.
    """
    every = plan.session.every(
        "eks", "describe_cluster_versions", "clusterVersions", versionStatus="STANDARD_SUPPORT"
    )
    known = sorted({each["clusterVersion"] for each in every})
    if plan.version not in known:
        raise BadInput(
            f"Kubernetes {plan.version} is not, or no longer, in the standard support of EKS",
            about=f'version="{plan.version}" in {plan.session.region}',
            fix=f"version= one of: {', '.join(known)}",
        )
