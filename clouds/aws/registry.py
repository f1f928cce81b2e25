"""The cluster's image repositories, made on demand, and the group of its control plane's logs."""

from collections.abc import Mapping

from clouds.aws.plan import AwsResource, EksPlan, as_dict, as_list
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

LOG_DAYS = 7


class Repositories(AwsResource):
    """All repositories of the cluster: ``trainyard/<cluster>/<image>``, with their images."""

    kind = "AWS::ECR::Repository"
    hourly_cost = "0.10 $ a GB and month"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, "repositories")

    def resource_name(self, image: str) -> str:
        """Return the name of an image's repository."""
        return f"trainyard/{self.plan.cluster}/{image}"

    def ensure(self, image: str) -> str:
        """Make the repository of an image, or find it; return its address, without a tag.

        Raises:
            AwsError: It is there, and not the kit's.
        """
        name = self.resource_name(image)
        self.session.call(
            "ecr",
            "create_repository",
            fine={"RepositoryAlreadyExistsException"},
            repositoryName=name,
            imageTagMutability="IMMUTABLE",
            tags=as_list(self.written()),
        )
        (found,) = self.session.call("ecr", "describe_repositories", repositoryNames=[name])["repositories"]
        self.is_ours(self._tags(found))
        return found["repositoryUri"]

    def describe(self) -> ResourceStatus:
        found = self._found()
        if not found:
            return ABSENT
        self.tags = self.plan.tags
        return self.seen(ResourceState.READY, " ".join(each["repositoryName"] for each in found))

    def create(self) -> None:
        """Do nothing: they are made on demand."""

    def delete(self) -> None:
        for each in self._found():
            self.session.find("ecr", "delete_repository", repositoryName=each["repositoryName"], force=True)

    def mark(self, tags: Mapping[str, str]) -> None:
        for each in self._found():
            self.session.call("ecr", "tag_resource", resourceArn=each["repositoryArn"], tags=as_list(tags))

    def _found(self) -> list[dict]:
        every = self.session.every("ecr", "describe_repositories", "repositories")
        named = [each for each in every if each["repositoryName"].startswith(self.resource_name(""))]
        return [each for each in named if self.is_ours(self._tags(each))]

    def _tags(self, found: Mapping) -> dict[str, str]:
        told = self.session.find("ecr", "list_tags_for_resource", resourceArn=found["repositoryArn"])
        return as_dict((told or {}).get("tags"))


class LogGroup(AwsResource):
    """Where EKS writes the control plane's logs, if somebody turns them on; made by us, it has our tags."""

    kind = "AWS::Logs::LogGroup"
    hourly_cost = "0.03 $ a GB and month"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, "log group")
        self.group = f"/aws/eks/{plan.cluster}/cluster"

    @property
    def arn(self) -> str:
        """Its name in all of AWS."""
        return self.plan.arn("logs", f"log-group:{self.group}")

    def describe(self) -> ResourceStatus:
        every = self.session.every("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=self.group)
        found = next((each for each in every if each["logGroupName"] == self.group), None)
        if found is None:
            return ABSENT
        told = self.session.find("logs", "list_tags_for_resource", resourceArn=self.arn) or {}
        if not self.is_ours(told.get("tags") or {}):
            return ABSENT
        kept = found.get("retentionInDays") == LOG_DAYS
        return self.seen(ResourceState.READY if kept else ResourceState.PARTIAL, self.arn, tags=told["tags"])

    def create(self) -> None:
        self.session.call(
            "logs",
            "create_log_group",
            fine={"ResourceAlreadyExistsException"},
            logGroupName=self.group,
            tags=self.written(),
        )
        self.session.call("logs", "put_retention_policy", logGroupName=self.group, retentionInDays=LOG_DAYS)

    def delete(self) -> None:
        if self.describe().state is not ResourceState.ABSENT:
            self.session.find("logs", "delete_log_group", logGroupName=self.group)

    def mark(self, tags: Mapping[str, str]) -> None:
        self.session.find("logs", "tag_resource", resourceArn=self.arn, tags=dict(tags))
