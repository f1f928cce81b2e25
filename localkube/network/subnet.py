"""The addresses of a site's network: apart, because who only wants these need not import the agent."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Site:
    """The addresses of a site's network."""

    address: str = "10.244.0.1"
    prefix: int = 16
    gateway: str = "10.244.255.254"
    services: str = "10.96.0.0"
    services_prefix: int = 16

    def pod_network(self) -> dict[str, Any]:
        """Return what the runtime needs to connect a pod."""
        return {
            "prefix": self.prefix,
            "router": self.address,
            "gateway": self.gateway,
            "services": self.services,
            "services_prefix": self.services_prefix,
        }
