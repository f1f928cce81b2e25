"""Which pods have a role of IAM: they read the cluster's bucket without a key.

One association is of one namespace: that of the kit is made with the cluster, those of attendees with their
rooms. All of them go with the cluster.
"""

from collections.abc import Mapping

from clouds.aws.client_errors import ABSENT as GONE
from clouds.aws.client_errors import AwsError
from clouds.aws.plan import AwsResource, EksPlan
from clouds.aws.roles import Role
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus


class PodIdentity(AwsResource):
    """Gives the pods of one service account a role: they read the cluster's bucket without a key."""

    kind = "AWS::EKS::PodIdentityAssociation"

    def __init__(
        self, plan: EksPlan, role: Role, *, namespace: str = "default", account: str = "default"
    ) -> None:
        room = "" if namespace == "default" else f" of {namespace}"
        super().__init__(plan, f"pod identity{room}", ("cluster", role.name))
        self.role, self.namespace, self.account = role, namespace, account

    def describe(self) -> ResourceStatus:
        found = self.session.find(
            "eks",
            "list_pod_identity_associations",
            clusterName=self.plan.cluster,
            namespace=self.namespace,
            serviceAccount=self.account,
        )
        every = (found or {}).get("associations") or []
        if not every:
            return ABSENT
        self.tags = self.plan.tags
        return self.seen(ResourceState.READY, every[0]["associationId"])

    def create(self) -> None:
        self.session.call(
            "eks",
            "create_pod_identity_association",
            fine={"ResourceInUseException"},
            clusterName=self.plan.cluster,
            namespace=self.namespace,
            serviceAccount=self.account,
            roleArn=self.role.arn,
            tags=self.written(),
        )

    def delete(self) -> None:
        if identity := self.describe().id:
            self.session.find(
                "eks",
                "delete_pod_identity_association",
                clusterName=self.plan.cluster,
                associationId=identity,
            )

    def mark(self, tags: Mapping[str, str]) -> None:
        if identity := self.describe().id:
            arn = self.plan.arn("eks", f"podidentityassociation/{self.plan.cluster}/{identity}")
            self.session.call("eks", "tag_resource", resourceArn=arn, tags=dict(tags))


class PodIdentities(AwsResource):
    """For the end: all associations of the kit's role for pods, in whatever namespace."""

    kind = "AWS::EKS::PodIdentityAssociation"

    def __init__(self, plan: EksPlan, role: Role) -> None:
        super().__init__(plan, "pod identities of rooms", ("cluster", role.name, "pod identity"))
        self.role = role

    def found(self) -> list[str]:
        """Return the ids of those that are of the kit's role; a list does not tell, so each is asked."""
        whose = {"clusterName": self.plan.cluster}
        listed = self._listed()
        told = (
            self.session.find("eks", "describe_pod_identity_association", **whose, associationId=each)
            for each in listed
        )
        return [
            each["association"]["associationId"]
            for each in told
            if each and each["association"]["roleArn"] == self.role.arn
        ]

    def _listed(self) -> list[str]:
        """Return the ids of those of attendees' namespaces; empty where the cluster is gone."""
        try:
            every = list(
                self.session.every(
                    "eks", "list_pod_identity_associations", "associations", clusterName=self.plan.cluster
                )
            )
        except AwsError as error:
            if GONE.search(error.code):
                return []
            raise
        # Those of add-ons have an owner; that of the kit's namespace is a part of its own.
        rooms = (each for each in every if not each.get("ownerArn") and each["namespace"] != "default")
        return [each["associationId"] for each in rooms]

    def describe(self) -> ResourceStatus:
        found = self.found()
        self.tags = self.plan.tags
        return self.seen(ResourceState.PARTIAL, " ".join(found)) if found else ABSENT

    def create(self) -> None:
        """Do nothing: each is made with its room."""

    def delete(self) -> None:
        for each in self.found():
            self.session.find(
                "eks",
                "delete_pod_identity_association",
                clusterName=self.plan.cluster,
                associationId=each,
            )

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: they go with the cluster."""
