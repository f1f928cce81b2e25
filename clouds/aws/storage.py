"""Where a cluster's files are: a file system that all nodes mount at once, and a bucket."""

from collections.abc import Mapping

from clouds.aws.network import EfsSecurityGroup, VpcSubnet
from clouds.aws.plan import AwsResource, EksPlan, as_dict, as_list
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

THROUGHPUT = "elastic"  # grows with the reading and writing, and is paid by it; no credits that run out
STATES = {
    "creating": ResourceState.PENDING,
    "available": ResourceState.READY,
    "updating": ResourceState.READY,
    "deleting": ResourceState.DELETING,
    "deleted": ResourceState.ABSENT,
    "error": ResourceState.FAILED,
}


class EfsFileSystem(AwsResource):
    """An EFS file system, encrypted, of elastic throughput. Its creation token makes it one of its name."""

    kind, expected, expected_gone = "AWS::EFS::FileSystem", 10.0, 10.0
    hourly_cost = "0.30 $ a GB and month, and what is read and written"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, "file system")

    def describe(self) -> ResourceStatus:
        found = next(
            self.session.every(
                "efs", "describe_file_systems", "FileSystems", CreationToken=self.plan.resource_name("files")
            ),
            None,
        )
        if found is None:
            return ABSENT
        tags = as_dict(found.get("Tags"))
        if not self.is_ours(tags):
            return ABSENT
        return self.seen(STATES[found["LifeCycleState"]], found["FileSystemId"], tags=tags)

    def create(self) -> None:
        self.session.call(
            "efs",
            "create_file_system",
            fine={"FileSystemAlreadyExists"},
            CreationToken=self.plan.resource_name("files"),
            PerformanceMode="generalPurpose",
            ThroughputMode=THROUGHPUT,
            Encrypted=True,
            Backup=False,
            Tags=as_list(self.written()),
        )

    def delete(self) -> None:
        if identity := self.describe().id:
            self.session.find("efs", "delete_file_system", FileSystemId=identity)

    def mark(self, tags: Mapping[str, str]) -> None:
        if identity := self.describe().id:
            self.session.call("efs", "tag_resource", ResourceId=identity, Tags=as_list(tags))


class MountTarget(AwsResource):
    """The address at which one subnet's machines reach the file system; its tags are the file system's."""

    kind, expected, expected_gone = "AWS::EFS::MountTarget", 90.0, 60.0

    def __init__(
        self, plan: EksPlan, files: EfsFileSystem, subnet: VpcSubnet, group: EfsSecurityGroup
    ) -> None:
        super().__init__(plan, f"mount target {subnet.number + 1}", (files.name, subnet.name, group.name))
        self.files, self.subnet, self.group = files, subnet, group

    def describe(self) -> ResourceStatus:
        files, subnet = self.files.describe(), self.subnet.id
        if not files.id or not subnet:
            return ABSENT
        found = self.session.find("efs", "describe_mount_targets", FileSystemId=files.id) or {}
        own = next((each for each in found.get("MountTargets", []) if each["SubnetId"] == subnet), None)
        if own is None:
            return ABSENT
        self.tags = self.files.tags
        return self.seen(STATES[own["LifeCycleState"]], own["MountTargetId"])

    def create(self) -> None:
        self.session.call(
            "efs",
            "create_mount_target",
            fine={"MountTargetConflict"},
            FileSystemId=self.files.id,
            SubnetId=self.subnet.id,
            SecurityGroups=[self.group.id],
        )

    def delete(self) -> None:
        if identity := self.describe().id:
            self.session.find("efs", "delete_mount_target", MountTargetId=identity)

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: it has no tags of its own."""


class MountTargets(AwsResource):
    """All mount targets of the file system, in whatever subnet: for its end."""

    kind, expected_gone = "AWS::EFS::MountTarget", 60.0

    def __init__(self, plan: EksPlan, files: EfsFileSystem, depends_on: tuple[str, ...]) -> None:
        super().__init__(plan, "mount targets", (files.name, *depends_on))
        self.files = files

    def describe(self) -> ResourceStatus:
        found = self._found()
        if not found:
            return ABSENT
        self.tags = self.files.tags
        going = all(each["LifeCycleState"] == "deleting" for each in found)
        words = " ".join(each["MountTargetId"] for each in found)
        return self.seen(ResourceState.DELETING if going else ResourceState.READY, words)

    def create(self) -> None:
        """Do nothing: `MountTarget` makes each."""

    def delete(self) -> None:
        for each in self._found():
            self.session.find("efs", "delete_mount_target", MountTargetId=each["MountTargetId"])

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: they have no tags of their own."""

    def _found(self) -> list[dict]:
        files = self.files.describe().id
        told = self.session.find("efs", "describe_mount_targets", FileSystemId=files) if files else None
        return [each for each in (told or {}).get("MountTargets", []) if each["LifeCycleState"] != "deleted"]


class S3Bucket(AwsResource):
    """The cluster's bucket: trainers and models, and who made what first."""

    kind, expected, expected_gone = "AWS::S3::Bucket", 2.0, 5.0
    hourly_cost = "0.023 $ a GB and month"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, "bucket")

    def describe(self) -> ResourceStatus:
        name = self.plan.bucket
        if self.session.find("s3", "head_bucket", Bucket=name) is None:
            return ABSENT
        tags = as_dict((self.session.find("s3", "get_bucket_tagging", Bucket=name) or {}).get("TagSet"))
        if not tags:  # its name holds the account's number and the kit's: it died before it was marked
            return self.seen(ResourceState.PARTIAL, name)
        if not self.is_ours(tags):
            return ABSENT
        return self.seen(ResourceState.READY, name, tags=tags)

    def create(self) -> None:
        here = self.session.region
        place = {"CreateBucketConfiguration": {"LocationConstraint": here}} if here != "us-east-1" else {}
        self.session.call(
            "s3", "create_bucket", fine={"BucketAlreadyOwnedByYou"}, Bucket=self.plan.bucket, **place
        )
        self._tag(self.written())

    def delete(self) -> None:
        if self.describe().state is ResourceState.ABSENT:
            return
        versions = self.session.client("s3").get_paginator("list_object_versions")
        for page in versions.paginate(Bucket=self.plan.bucket):
            every = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            batch = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in every]
            if batch:
                self.session.call(
                    "s3", "delete_objects", Bucket=self.plan.bucket, Delete={"Objects": batch, "Quiet": True}
                )
        self.session.find("s3", "delete_bucket", Bucket=self.plan.bucket)

    def mark(self, tags: Mapping[str, str]) -> None:
        told = self.session.find("s3", "get_bucket_tagging", Bucket=self.plan.bucket) or {}
        self._tag(as_dict(told.get("TagSet")) | dict(tags))

    def _tag(self, tags: Mapping[str, str]) -> None:
        """Write all its tags: S3 knows no adding."""
        self.session.call(
            "s3", "put_bucket_tagging", Bucket=self.plan.bucket, Tagging={"TagSet": as_list(tags)}
        )
