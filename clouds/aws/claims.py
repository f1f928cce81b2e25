"""Which of two things counts, where AWS has no names: whoever writes first into the cluster's bucket.

EC2 makes as many networks of one tag as it is asked for. S3 writes an object only if there is none yet, and
tells everybody else that there is one
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
"""

from abc import abstractmethod
from collections.abc import Mapping

from clouds.aws.plan import Ec2Resource, EksPlan, as_dict
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

FOLDER = "trainyard/claims"
TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


class BucketClaims:
    """Which id holds a word, for one cluster."""

    def __init__(self, plan: EksPlan) -> None:
        self.plan, self.session = plan, plan.session

    def holder(self, word: str) -> str | None:
        """Return the id that holds a word, or None."""
        read = self.session.find("s3", "get_object", Bucket=self.plan.bucket, Key=f"{FOLDER}/{word}")
        return None if read is None else read["Body"].read().decode()

    def take(self, word: str, own: str, *, instead_of: str | None = None) -> str:
        """Write an id, unless somebody else was first; return the one that holds the word then.

        Args:
            word: What for.
            own: The id.
            instead_of: An id that holds it, and is of something that is gone.
        """
        where = {"Bucket": self.plan.bucket, "Key": f"{FOLDER}/{word}"}
        condition: dict[str, str] = {"IfNoneMatch": "*"}
        if instead_of is not None:
            read = self.session.find("s3", "get_object", **where)
            if read is not None:
                if read["Body"].read().decode() != instead_of:
                    return self.holder(word) or own
                condition = {"IfMatch": read["ETag"]}
        self.session.call("s3", "put_object", fine=TAKEN, Body=own.encode(), **where, **condition)
        return self.holder(word) or own


class ClaimedResource(Ec2Resource):
    """A thing of which EC2 makes as many as it is asked for; the one that holds the claim counts."""

    def describe(self) -> ResourceStatus:
        found = {each[self.listing[2]]: each for each in self.found()}
        if not found:
            return ABSENT
        held = BucketClaims(self.plan).holder(self.name)
        own = held if held in found else min(found)
        ready = own == held and len(found) == 1 and self.is_whole(found[own])
        tags = as_dict(found[own].get("Tags"))
        return self.seen(ResourceState.READY if ready else ResourceState.PARTIAL, own, tags=tags)

    def create(self) -> None:
        claims = BucketClaims(self.plan)
        found = {each[self.listing[2]]: each for each in self.found()}
        own = min(found) if found else self.create_one()
        held = claims.holder(self.name)
        if held not in found:
            self.prepare(own)
            held = claims.take(self.name, own, instead_of=held)
        elif not self.is_whole(found[held]):
            self.prepare(held)
        for each in self.found():
            if each[self.listing[2]] != held:  # made at the same time as the one that counts, and unused
                self.remove(each)

    def delete(self) -> None:
        for each in self.found():
            self.remove(each)

    def is_whole(self, found: Mapping) -> bool:
        """Check whether all that belongs to it is there."""
        return True

    @abstractmethod
    def create_one(self) -> str:
        """Make one, with its tags, and return its id."""

    def prepare(self, identity: str) -> None:
        """Make what belongs to it, or what of it is missing."""

    @abstractmethod
    def remove(self, found: Mapping) -> None:
        """Delete one, with what belongs to it."""
