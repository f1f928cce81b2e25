"""Which of two things counts, where AWS has no names: whoever writes first into the cluster's bucket.

EC2 makes as many networks of one tag as it is asked for. S3 writes an object only if there is none yet, and
tells everybody else that there is one
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
"""

from kitlib.clouds.aws.plan import Plan

FOLDER = "trainyard/claims"
TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


class Claims:
    """Which id holds a word, for one cluster."""

    def __init__(self, plan: Plan) -> None:
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
