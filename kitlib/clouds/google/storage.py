"""The bucket of a cluster, for trainers, models and what pods mount with GCS FUSE, and who may use it.

Shared file systems are Filestore instances, which the cluster's CSI driver makes for claims: their
StorageClass is in `manifests/gke`, those that are left are in `leftovers`.
"""

import hashlib

from kitlib.clouds.google.accounts import ANCHOR
from kitlib.clouds.google.owned import Owned, marked
from kitlib.clouds.google.session import Session, find
from kitlib.clouds.resource import ABSENT, Resource, Seen, State
from kitlib.clouds.tags import Tags

OBJECT_USER = "roles/storage.objectUser"


def bucket_name(project: str, cluster: str) -> str:
    """Return what the bucket of a cluster is called: buckets share their names with all of the world's.

    Example:
        >>> bucket_name("my-project", "lab")
        'trainyard-lab-7b9d0e5c9a'
    """
    digest = hashlib.sha256(f"{project}/{cluster}".encode()).hexdigest()[:10]
    return f"trainyard-{cluster[:40]}-{digest}"


class Bucket(Owned):
    """A bucket in the cluster's region, closed to the public, that keeps nothing that was deleted."""

    name, kind, needs = "bucket", "storage.googleapis.com/Bucket", (ANCHOR,)
    expected, expected_gone, poll = 2.0, 10.0, 5.0
    bills = "0.02 dollars a month for each gigabyte in it"

    @property
    def id(self) -> str:
        return bucket_name(self.session.project, self.tags.cluster)

    def found(self):
        return find(self.session.rest, "storage", "buckets.get", bucket=self.id)

    def labels(self, found):
        return found.get("labels") or {}

    def make(self) -> None:
        body = {
            "name": self.id,
            "location": self.session.region.upper(),
            "labels": marked(self.tags, self.session.zone),
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
            "softDeletePolicy": {
                "retentionDurationSeconds": "0"
            },  # else deleted objects are billed for a week
        }
        self.create(
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


class BucketAccess(Resource):
    """That the pods of the cluster, and nobody else's, may read and write its bucket.

    The policy goes with the bucket, so there is nothing to unmake.
    """

    name, kind, needs = "access to the bucket", "storage.googleapis.com/Policy", ("bucket", "cluster")
    expected, poll = 2.0, 5.0

    def __init__(self, session: Session, tags: Tags) -> None:
        self.session, self.tags = session, tags

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

    def look(self) -> Seen:
        policy = self._policy()
        if policy is None or not any(self._gives(each) for each in policy.get("bindings", ())):
            return ABSENT
        return Seen(State.READY, self.member)

    def make(self) -> None:
        policy = self._policy() or {}
        policy.setdefault("bindings", []).append({"role": OBJECT_USER, "members": [self.member]})
        self.session.rest("storage", "buckets.setIamPolicy", bucket=self._bucket, body=policy)

    def unmake(self) -> None:
        return

    @property
    def _bucket(self) -> str:
        return bucket_name(self.session.project, self.tags.cluster)

    def _policy(self):
        return find(
            self.session.rest,
            "storage",
            "buckets.getIamPolicy",
            bucket=self._bucket,
            optionsRequestedPolicyVersion=3,
        )

    def _gives(self, binding: dict) -> bool:
        return binding["role"] == OBJECT_USER and self.member in binding.get("members", ())
