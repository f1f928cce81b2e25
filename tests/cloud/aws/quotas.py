"""Service Quotas: those of EC2 by family of machines and of the network, with a new account's values."""

from typing import Any

from .calls import Refused
from .wire import Question

# Code: (name, value of an account that has used EC2 for a while, service).
QUOTAS = {
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 64.0, "ec2"),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 64.0, "ec2"),
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 256.0, "ec2"),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 256.0, "ec2"),
    "L-417A185B": ("Running On-Demand P instances", 0.0, "ec2"),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 0.0, "ec2"),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 0.0, "ec2"),
    "L-0263D0A3": ("EC2-VPC Elastic IPs", 5.0, "ec2"),
    "L-F678F1CE": ("VPCs per Region", 5.0, "vpc"),
    "L-A4707A72": ("Internet gateways per Region", 5.0, "vpc"),
    "L-FE5A380F": ("NAT gateways per Availability Zone", 5.0, "vpc"),
    "L-1194D53C": ("Clusters", 100.0, "eks"),
    "L-6D54EA21": ("Managed node groups per cluster", 30.0, "eks"),
    "L-848C634D": ("File systems per account", 1000.0, "elasticfilesystem"),
}


class Quotas:
    """The service; `values` has what a test set, by (region, code)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let every quota have its usual value."""
        self.values: dict[tuple[str, str], float] = {}

    def get_service_quota(self, question: Question) -> dict[str, Any]:
        code = question.parameters["QuotaCode"]
        if QUOTAS.get(code, ("", 0, ""))[2] != question.parameters["ServiceCode"]:
            raise Refused(
                "NoSuchResourceException", "The request failed because the specified quota does not exist."
            )
        return {"Quota": self._quota(question.region, code)}

    def get_aws_default_service_quota(self, question: Question) -> dict[str, Any]:
        return self.get_service_quota(question)

    def list_service_quotas(self, question: Question) -> dict[str, Any]:
        service = question.parameters["ServiceCode"]
        return {
            "Quotas": [
                self._quota(question.region, code) for code, row in QUOTAS.items() if row[2] == service
            ]
        }

    def list_aws_default_service_quotas(self, question: Question) -> dict[str, Any]:
        return self.list_service_quotas(question)

    def _quota(self, region: str, code: str) -> dict[str, Any]:
        name, value, service = QUOTAS[code]
        return {
            "ServiceCode": service,
            "ServiceName": service.upper(),
            "QuotaArn": f"arn:aws:servicequotas:{region}:123456789012:{service}/{code}",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": self.values.get((region, code), value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
