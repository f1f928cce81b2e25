"""The bucket of a cluster, for trainers, models and what pods mount with GCS FUSE, and who may use it.

Shared file systems are Filestore instances, which the cluster's CSI driver makes for claims: their
StorageClass is in `manifests/gke`, those that are left are in `leftovers`.
"""

import hashlib

from clouds.google.access import IamBinding
from clouds.google.accounts import ANCHOR, BUILDS, email
from clouds.google.owned import GcpResource, labels_of
from clouds.google.session import find

OBJECT_USER, BUCKET_READER = "roles/storage.objectUser", "roles/storage.legacyBucketReader"


def bucket_name(project: str, cluster: str) -> str:
    """Name the bucket of a cluster: names of buckets are global.

    Example:
        >>> bucket_name("my-project", "lab")
        'trainyard-lab-7b9d0e5c9a'
    """
    digest = hashlib.sha256(f"{project}/{cluster}".encode()).hexdigest()[:10]
    return f"trainyard-{cluster[:40]}-{digest}"


class StorageBucket(GcpResource):
    """A bucket in the cluster's region, closed to the public, that keeps nothing that was deleted."""

    name, kind, depends_on = "bucket", "storage.googleapis.com/Bucket", (ANCHOR,)
    expected, expected_gone, poll = 2.0, 10.0, 5.0
    hourly_cost = "0.02 dollars a month for each gigabyte in it"

    @property
    def id(self) -> str:
        return bucket_name(self.session.project, self.tags.cluster)

    def found(self):
        return find(self.session.rest, "storage", "buckets.get", bucket=self.id)

    def labels(self, found):
        return found.get("labels") or {}

    def create(self) -> None:
        body = {
            "name": self.id,
            "location": self.session.region.upper(),
            "labels": labels_of(self.tags, self.session.zone),
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
            "softDeletePolicy": {
                "retentionDurationSeconds": "0"
            },  # else deleted objects are billed for a week
        }
        self.send_create(
            lambda: self.session.rest("storage", "buckets.insert", project=self.session.project, body=body)
        )

    def remove(self) -> None:
        found = self.session.every("storage", "objects.list", "items", bucket=self.id, versions=True)
        for each in list(found):
            find(
                self.session.rest,
                "storage",
                "objects.delete",
                bucket=self.id,
                object=each["name"],
                generation=each.get("generation"),
            )
        self.session.rest("storage", "buckets.delete", bucket=self.id)


class _OfBucket(IamBinding):
    kind = "storage.googleapis.com/Policy"

    def policy(self) -> dict | None:
        where = {"bucket": self._bucket, "optionsRequestedPolicyVersion": 3}
        return find(self.session.rest, "storage", "buckets.getIamPolicy", **where)

    def set_policy(self, policy: dict) -> None:
        self.session.rest("storage", "buckets.setIamPolicy", bucket=self._bucket, body=policy)

    @property
    def _bucket(self) -> str:
        return bucket_name(self.session.project, self.tags.cluster)


class BucketAccess(_OfBucket):
    """That the pods of the cluster, and nobody else's, may read and write its bucket."""

    name, depends_on = "access to the bucket", ("bucket", "cluster")
    roles = (OBJECT_USER,)

    @property
    def member(self) -> str:
        """All pods of the cluster, by workload identity.

        https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
        """
        project, cluster = self.session.project, f"{self.session.place}/clusters/{self.tags.cluster}"
        pool = f"projects/{self.session.number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
        return (
            f"principalSet://iam.googleapis.com/{pool}/kubernetes.cluster/"
            f"https://container.googleapis.com/v1/{cluster}"
        )


class BuildsFiles(_OfBucket):
    """That builds may read from the bucket what they are made from, and write their logs there."""

    name, depends_on = "bucket for builds", ("account builds",)
    roles = (OBJECT_USER, BUCKET_READER)

    @property
    def member(self) -> str:
        return f"serviceAccount:{email(self.session, BUILDS, self.tags.cluster)}"
