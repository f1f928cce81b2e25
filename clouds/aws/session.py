"""One user's way into one region of AWS: clients, requests, pages of answers; what goes wrong in the kit's
words.

Which credentials win is botocore's business: the profile that was asked for, the environment, the files, the
role of the machine. The endpoint as well: ``AWS_ENDPOINT_URL`` leads elsewhere.
"""

import copy
import difflib
import os
import threading
from collections.abc import Collection, Iterator
from functools import cache, cached_property

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from botocore.parsers import ResponseParserError

from clouds.aws.client_errors import ABSENT, AwsError, code_of, to_error
from kitlib.errors import BadInput

_CONFIG = Config(
    connect_timeout=10,
    read_timeout=60,
    retries={"mode": "standard", "total_max_attempts": 5},
    user_agent_extra="trainyard",
    max_pool_connections=20,
)
ERRORS = (BotoCoreError, ClientError, ResponseParserError, OSError)


class AwsSession:
    """AWS, as one user, in one region; for use by many threads.

    Args:
        region: By default that of ``AWS_REGION``, ``AWS_DEFAULT_REGION`` or the profile.
        profile: By default what botocore finds.

    Raises:
        BadInput: There is no such profile or region, or none is named.

    Example:
        >>> session = AwsSession("eu-central-1")
        >>> session.call("eks", "describe_cluster", name="lab")["cluster"]["status"]
        'ACTIVE'
    """

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        self.profile = profile
        region = region or os.environ.get("AWS_REGION") or None
        try:
            self._boto = boto3.Session(region_name=region, profile_name=profile)
        except ProfileNotFound as error:
            raise to_error(error, "sts", "sign in", {}, region=region or "-", profile=profile) from error
        self.region = _checked(self._boto)
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], object] = {}

    def within(self, region: str) -> "AwsSession":
        """Return the same user's way into another region, one that AWS itself has named.

        What the services look like is read once for all of them.
        """
        other = copy.copy(self)
        other.region, other._clients = region, {}
        return other

    @cached_property
    def identity(self) -> dict[str, str]:
        """Who is asking: ``Account``, ``Arn``, ``UserId``."""
        return self.call("sts", "get_caller_identity")

    @property
    def account(self) -> str:
        """The account's twelve digits."""
        return self.identity["Account"]

    @property
    def partition(self) -> str:
        """``aws``, or ``aws-cn`` …: the second word of every ARN here."""
        return self._boto.get_partition_for_region(self.region)

    @property
    def credentials(self):
        """The credentials as botocore found them, or None."""
        return self._boto.get_credentials()

    def client(self, service: str, region: str | None = None):
        """Return a client of boto3; made once for each service.

        Args:
            service: ``eks``, ``ec2`` …
            region: Where a service is in one region for all, such as the price list.
        """
        key = (service, region or self.region)
        with self._lock:  # a session of boto3 is for one thread
            if key not in self._clients:
                self._clients[key] = self._boto.client(service, region_name=key[1], config=_CONFIG)
            return self._clients[key]

    def call(self, service: str, operation: str, *, fine: Collection[str] = (), **parameters) -> dict | None:
        """Make one request and return its answer.

        Args:
            service: As boto3 calls it.
            operation: The same, such as ``create_cluster``.
            fine: Codes of refusals that are no error: the answer is None then.
            parameters: The request's own.

        Raises:
            AwsError: AWS refused, or did not answer.
        """
        try:
            return getattr(self.client(service), operation)(**parameters)
        except ERRORS as error:
            if code_of(error) in fine:
                return None
            raise self.translated(error, service, operation, parameters) from error

    def find(self, service: str, operation: str, **parameters) -> dict | None:
        """Make one request about something that may not be there; None if it is not."""
        try:
            return self.call(service, operation, **parameters)
        except AwsError as error:
            if ABSENT.search(error.code):
                return None
            raise

    def every(self, service: str, operation: str, key: str, **parameters) -> Iterator:
        """Yield what all pages of an answer hold.

        Args:
            key: The member of the answer that is a list.
        """
        try:
            client = self.client(service)
            if not client.can_paginate(operation):
                yield from getattr(client, operation)(**parameters).get(key) or []
                return
            for page in client.get_paginator(operation).paginate(**parameters):
                yield from page.get(key) or []
        except ERRORS as error:
            raise self.translated(error, service, operation, parameters) from error

    def translated(self, error: Exception, service: str, operation: str, parameters: dict):
        """Return the kit's error for one of botocore's."""
        return to_error(error, service, operation, parameters, region=self.region, profile=self.profile)


def _checked(session: boto3.Session) -> str:
    """Return the session's region, if botocore knows it."""
    region = session.region_name
    if not region:
        raise BadInput("no region is named", about="AWS", fix='region="eu-central-1", or set AWS_REGION')
    known = _regions()
    if region not in known:
        near = difflib.get_close_matches(region, known, n=3, cutoff=0.6) or sorted(known)[:3]
        raise BadInput(
            "AWS has no such region", about=f'region="{region}"', fix=f"did you mean {', '.join(near)}?"
        )
    return region


@cache
def _regions() -> tuple[str, ...]:
    """Return all that botocore knows; it takes half a second to read."""
    session = boto3.Session()
    partitions = session.get_available_partitions()
    return tuple(region for each in partitions for region in session.get_available_regions("ec2", each))
