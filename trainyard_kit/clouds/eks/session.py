"""AWS requests as one user in one region, with pagination, and errors converted to the kit's.

botocore chooses the credentials and the endpoint: profile, environment, files, role.
"""

import copy
import difflib
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from botocore.parsers import ResponseParserError

from kitlib.errors import BadInput, KitError
from trainyard_kit.clouds.eks.client_errors import ABSENT, AwsError, to_error
from trainyard_kit.clouds.eks.credentials import find_renewal

_CONFIG = Config(
    connect_timeout=10,
    read_timeout=60,
    retries={"mode": "standard", "total_max_attempts": 5},
    user_agent_extra="trainyard",
    max_pool_connections=20,
)
ERRORS = (BotoCoreError, ClientError, ResponseParserError, OSError)


class AwsSession:
    """A thread-safe session.

    Args:
        region: By default that of ``AWS_REGION``, ``AWS_DEFAULT_REGION`` or the profile.
        profile: By default the one that botocore chooses.

    Example:
        >>> session = AwsSession("eu-central-1")
        >>> session.call("eks", "describe_cluster", name="lab")["cluster"]["status"]
        'ACTIVE'
    """

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        self.profile = profile
        region = region or os.environ.get("AWS_REGION") or None
        self._core = botocore.session.Session(profile=profile)
        try:
            self._boto = boto3.Session(region_name=region, botocore_session=self._core)
        except ProfileNotFound as error:
            raise to_error(error, "sts", "sign in", {}, region=region or "-", profile=profile) from error
        self.region = self._boto.region_name
        if self.region not in known_regions():
            near = difflib.get_close_matches(self.region or "", known_regions(), n=3) or ["eu-central-1"]
            message = "AWS has no such region" if self.region else "no region is named"
            fix = f'`region="{" or ".join(near)}"`, or set AWS_REGION'
            raise BadInput(message, about=f"region={self.region!r}", fix=fix)
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def within(self, region: str) -> "AwsSession":
        """Return the same user's session in another region; the name is not validated."""
        session = copy.copy(self)
        session.region, session._clients = region, {}
        return session

    @cached_property
    def identity(self) -> dict[str, str]:
        """The caller: ``Account``, ``Arn``, ``UserId``."""
        return self.call("sts", "get_caller_identity")

    @property
    def account(self) -> str:
        """The account id: twelve digits."""
        return self.identity["Account"]

    @cached_property
    def principal(self) -> str:
        """ARN of the caller's IAM user or role; for a session that of its role, with its path."""
        arn = self.identity["Arn"]
        if ":assumed-role/" not in arn:
            return arn
        role = arn.split("/")[1]
        try:
            return self.call("iam", "get_role", RoleName=role)["Role"]["Arn"]
        except KitError:  # without iam:GetRole, assume a role without a path
            if role.startswith("AWSReservedSSO_"):
                raise
            return f"arn:{self.partition}:iam::{self.account}:role/{role}"

    @property
    def partition(self) -> str:
        """The partition in ARNs: ``aws``, ``aws-cn``, …"""
        return self._boto.get_partition_for_region(self.region)

    @property
    def credentials(self) -> Any:
        """botocore's credentials, or None."""
        try:
            return self._boto.get_credentials()
        except ERRORS as error:
            raise self.convert(error, "sts", "sign in", {}) from error

    def role_arn(self, path: str) -> str:
        """Build the ARN of a role of the account, by its path and name."""
        return f"arn:{self.partition}:iam::{self.account}:role{path}"

    def client(self, service: str) -> Any:
        """A boto3 client, cached by service."""
        with self._lock:  # a boto3 session is not thread-safe
            if service not in self._clients:
                try:  # which reads the credentials
                    client = self._boto.client(service, region_name=self.region, config=_CONFIG)
                except ERRORS as error:
                    raise self.convert(error, service, "sign in", {}) from error
                self._clients[service] = client
            return self._clients[service]

    def call(self, service: str, operation: str, **parameters: object) -> dict[str, Any]:
        """Send one request.

        Args:
            service: boto3's name; a literal, as is the operation, because IAM policies are derived from them.
            operation: boto3's name, such as ``create_cluster``.
            parameters: Of the request.
        """
        try:
            answer: dict[str, Any] = getattr(self.client(service), operation)(**parameters)
        except ERRORS as error:
            raise self.convert(error, service, operation, parameters) from error
        return answer

    def find(
        self, service: str, operation: str, *, ignore: Collection[str] = (), **parameters: object
    ) -> dict[str, Any] | None:
        """Send one request; None if the object does not exist, or at the codes in ``ignore`` if any."""
        try:
            return self.call(service, operation, **parameters)
        except AwsError as error:
            if error.code in ignore or ABSENT.search(error.code) and not ignore:
                return None
            raise

    def paginate(self, service: str, operation: str, key: str, **parameters: object) -> Iterator[Any]:
        """Yield the items of the list ``key`` of all pages."""
        try:
            client = self.client(service)
            if not client.can_paginate(operation):
                yield from getattr(client, operation)(**parameters).get(key) or []
                return
            for page in client.get_paginator(operation).paginate(**parameters):
                yield from page.get(key) or []
        except ERRORS as error:
            raise self.convert(error, service, operation, parameters) from error

    def convert(self, error: Exception, service: str, operation: str, parameters: dict[str, Any]) -> KitError:
        """Convert an error of botocore."""
        settings = self._core.get_scoped_config()
        source = self._core.full_config["profiles"].get(settings.get("source_profile"), {})
        renew = find_renewal(os.environ, self.profile, settings | source)
        return to_error(
            error, service, operation, parameters, region=self.region, profile=self.profile, renew=renew
        )


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert tags to the list that most services use."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_dict(tags: list[dict[str, str]] | None) -> dict[str, str]:
    """Convert a list of tags."""
    return {tag["Key"]: tag["Value"] for tag in tags or []}


@cache
def known_regions() -> tuple[str, ...]:
    """All regions that botocore knows; reading them takes half a second."""
    session = boto3.Session()
    partitions = session.get_available_partitions()
    return tuple(
        region for partition in partitions for region in session.get_available_regions("ec2", partition)
    )
