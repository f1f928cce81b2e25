"""What was asked of the fake, as data: one call, and how a service refuses one."""

from dataclasses import dataclass, field
from typing import Any

from moto.core.exceptions import ServiceException


class Refused(ServiceException):
    """What a service answers in place of a result.

    ``details`` are the other members of the error's shape: ``clusterName``, ``nodegroupName`` …
    """

    def __init__(self, code: str, message: str, *, status: int | None = None, **details: Any) -> None:
        super().__init__(code, message)
        self.status = status
        for name, value in details.items():
            setattr(self, name, value)


@dataclass
class Call:
    """One request.

    Attributes:
        number: 1 for the first since the last reset.
        action: As IAM writes it: ``eks:CreateCluster``.
        service: boto3's name of the service.
        operation: ``CreateCluster``.
        region: From the signature.
        parameters: As boto3 was given them.
        when: The simulated time.
        key: The access key's id.
        outcome: ``ok``, the error's code, or ``cut before`` and ``cut after`` where the connection was.
    """

    number: int
    action: str
    service: str
    operation: str
    region: str
    parameters: dict[str, Any]
    when: float
    key: str
    outcome: str = field(default="")

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.operation.startswith(
            ("Describe", "List", "Get", "Head", "BatchGet", "Simulate", "Search")
        )
