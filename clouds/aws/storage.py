"""Where a cluster's files are: a file system that all nodes mount at once, and a bucket."""

from collections.abc import Mapping

from clouds.aws.network import FilesGroup, Subnet
from clouds.aws.plan import Part, Plan, as_dict, as_list
from clouds.reconciler.resource import ABSENT, Seen, State

THROUGHPUT = "elastic"  # grows with the reading and writing, and is paid by it; no credits that run out
STATES = {
    "creating": State.PENDING,
    "available": State.READY,
    "updating": State.READY,
    "deleting": State.GOING,
    "deleted": State.ABSENT,
    "error": State.FAILED,
}


class FileSystem(Part):
    """An EFS file system, encrypted, of elastic throughput. Its creation token makes it one of its name."""

    kind, expected, expected_gone = "AWS::EFS::FileSystem", 10.0, 10.0
    bills = "0.30 $ a GB and month, and what is read and written"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "file system")

    def look(self) -> Seen:
        found = next(
            self.session.every(
                "efs", "describe_file_systems", "FileSystems", CreationToken=self.plan.called("files")
            ),
            None,
        )
        if found is None:
            return ABSENT
        tags = as_dict(found.get("Tags"))
        if not self.is_ours(tags):
            return ABSENT
        return self.seen(STATES[found["LifeCycleState"]], found["FileSystemId"], tags=tags)

    def make(self) -> None:
        self.session.call(
            "efs",
            "create_file_system",
            fine={"FileSystemAlreadyExists"},
            CreationToken=self.plan.called("files"),
            PerformanceMode="generalPurpose",
            ThroughputMode=THROUGHPUT,
            Encrypted=True,
            Backup=False,
            Tags=as_list(self.written()),
        )

    def unmake(self) -> None:
        if identity := self.look().id:
            self.session.find("efs", "delete_file_system", FileSystemId=identity)

    def mark(self, tags: Mapping[str, str]) -> None:
        if identity := self.look().id:
            self.session.call("efs", "tag_resource", ResourceId=identity, Tags=as_list(tags))


class MountTarget(Part):
    """The address at which one subnet's machines reach the file system; its tags are the file system's."""

    kind, expected, expected_gone = "AWS::EFS::MountTarget", 90.0, 60.0

    def __init__(self, plan: Plan, files: FileSystem, subnet: Subnet, group: FilesGroup) -> None:
        super().__init__(plan, f"mount target {subnet.number + 1}", (files.name, subnet.name, group.name))
        self.files, self.subnet, self.group = files, subnet, group

    def look(self) -> Seen:
        files, subnet = self.files.look(), self.subnet.id
        if not files.id or not subnet:
            return ABSENT
        found = self.session.find("efs", "describe_mount_targets", FileSystemId=files.id) or {}
        own = next((each for each in found.get("MountTargets", []) if each["SubnetId"] == subnet), None)
        if own is None:
            return ABSENT
        self.tags = self.files.tags
        return self.seen(STATES[own["LifeCycleState"]], own["MountTargetId"])

    def make(self) -> None:
        self.session.call(
            "efs",
            "create_mount_target",
            fine={"MountTargetConflict"},
            FileSystemId=self.files.id,
            SubnetId=self.subnet.id,
            SecurityGroups=[self.group.id],
        )

    def unmake(self) -> None:
        if identity := self.look().id:
            self.session.find("efs", "delete_mount_target", MountTargetId=identity)

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: it has no tags of its own."""


class MountTargets(Part):
    """All mount targets of the file system, in whatever subnet: for its end."""

    kind, expected_gone = "AWS::EFS::MountTarget", 60.0

    def __init__(self, plan: Plan, files: FileSystem, needs: tuple[str, ...]) -> None:
        super().__init__(plan, "mount targets", (files.name, *needs))
        self.files = files

    def look(self) -> Seen:
        found = self._found()
        if not found:
            return ABSENT
        self.tags = self.files.tags
        going = all(each["LifeCycleState"] == "deleting" for each in found)
        words = " ".join(each["MountTargetId"] for each in found)
        return self.seen(State.GOING if going else State.READY, words)

    def make(self) -> None:
        """Do nothing: `MountTarget` makes each."""

    def unmake(self) -> None:
        for each in self._found():
            self.session.find("efs", "delete_mount_target", MountTargetId=each["MountTargetId"])

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: they have no tags of their own."""

    def _found(self) -> list[dict]:
        files = self.files.look().id
        told = self.session.find("efs", "describe_mount_targets", FileSystemId=files) if files else None
        return [each for each in (told or {}).get("MountTargets", []) if each["LifeCycleState"] != "deleted"]


class Bucket(Part):
    """The cluster's bucket: trainers and models, and who made what first."""

    kind, expected, expected_gone = "AWS::S3::Bucket", 2.0, 5.0
    bills = "0.023 $ a GB and month"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "bucket")

    def look(self) -> Seen:
        name = self.plan.bucket
        if self.session.find("s3", "head_bucket", Bucket=name) is None:
            return ABSENT
        tags = as_dict((self.session.find("s3", "get_bucket_tagging", Bucket=name) or {}).get("TagSet"))
        if not tags:  # its name holds the account's number and the kit's: it died before it was marked
            return self.seen(State.PARTIAL, name)
        if not self.is_ours(tags):
            return ABSENT
        return self.seen(State.READY, name, tags=tags)

    def make(self) -> None:
        here = self.session.region
        place = {"CreateBucketConfiguration": {"LocationConstraint": here}} if here != "us-east-1" else {}
        self.session.call(
            "s3", "create_bucket", fine={"BucketAlreadyOwnedByYou"}, Bucket=self.plan.bucket, **place
        )
        self._tag(self.written())

    def unmake(self) -> None:
        if self.look().state is State.ABSENT:
            return
        versions = self.session.client("s3").get_paginator("list_object_versions")
        for page in versions.paginate(Bucket=self.plan.bucket):
            every = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            doomed = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in every]
            if doomed:
                self.session.call(
                    "s3", "delete_objects", Bucket=self.plan.bucket, Delete={"Objects": doomed, "Quiet": True}
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
