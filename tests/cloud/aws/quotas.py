"""Service Quotas: those that the kit asks for, with a new account's values."""

from typing import Any

from .faults import Refused
from .wire import Question

# vCPUs of G, standard and P instances, each on demand and spot.
QUOTAS = {"L-DB2E81BA": 64.0, "L-3819A6DF": 64.0, "L-1216C47A": 256.0, "L-34B43A08": 256.0}
# VPCs, internet gateways, Elastic IP addresses, clusters.
QUOTAS |= {"L-F678F1CE": 5.0, "L-A4707A72": 5.0, "L-0263D0A3": 5.0, "L-1194D53C": 100.0}
QUOTAS |= {"L-417A185B": 0.0, "L-7212CCBC": 0.0, "L-C4BD4855": 0.0}


class Quotas:
    """The service; `values` has what a test set."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def get_service_quota(self, question: Question) -> dict[str, Any]:
        code = question.parameters["QuotaCode"]
        if code not in QUOTAS:
            raise Refused("NoSuchResourceException", "The specified quota does not exist.")
        return {"Quota": {"QuotaCode": code, "QuotaName": code, "Value": self.values.get(code, QUOTAS[code])}}
