"""Google's own clients of the fake: for its own tests, and for looking behind the kit's back."""

import functools

import grpc
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.container_v1 import ClusterManagerClient
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport
from googleapiclient.discovery import build

PREFIX = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


class Clients:
    """One client a service.

    Args:
        endpoints: As `FakeGoogle.endpoints` has them.
    """

    def __init__(self, endpoints) -> None:
        self._endpoints = endpoints

    @functools.cached_property
    def container(self) -> ClusterManagerClient:
        """The container API, over gRPC."""
        address = self._endpoints[f"{PREFIX}CONTAINER"].removeprefix("http://")
        self._channel = grpc.insecure_channel(address)
        return ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=self._channel))

    @functools.cache  # noqa: B019 - it lives as long as a test
    def rest(self, service: str, version: str = "v1"):
        """Return another API, over HTTP."""
        options = ClientOptions(api_endpoint=self._endpoints[f"{PREFIX}{service.upper()}"])
        return build(service, version, credentials=AnonymousCredentials(), client_options=options)

    def close(self) -> None:
        """Close the connections."""
        if "container" in self.__dict__:
            self._channel.close()
