"""The price list's query service: on-demand prices of machines, the control plane, storage, the network."""

import json
from typing import Any

from .calls import Refused
from .wire import Question

# Dollars an hour on demand with Linux in us-east-1 and us-west-2; elsewhere a tenth more: near enough.
MACHINES = {
    "t3.medium": 0.0416,
    "t3.large": 0.0832,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "m6i.large": 0.096,
    "c5.xlarge": 0.17,
    "c5.2xlarge": 0.34,
    "c6i.xlarge": 0.17,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g6.xlarge": 0.8048,
    "p3.2xlarge": 3.06,
}
CHEAP = ("us-east-1", "us-east-2", "us-west-2")
PRODUCTS: list[tuple[str, dict[str, str], str, float]] = [
    (
        "AmazonEKS",
        {
            "productFamily": "Compute",
            "operation": "CreateOperation",
            "usagetype": "{code}AmazonEKS-Hours:perCluster",
        },
        "Hrs",
        0.10,
    ),
    (
        "AmazonEFS",
        {
            "productFamily": "Storage",
            "storageClass": "General Purpose",
            "usagetype": "{code}TimedStorage-ByteHrs",
        },
        "GB-Mo",
        0.30,
    ),
    (
        "AmazonEC2",
        {"productFamily": "Storage", "volumeApiName": "gp3", "usagetype": "{code}EBS:VolumeUsage.gp3"},
        "GB-Mo",
        0.08,
    ),
    (
        "AmazonEC2",
        {"productFamily": "NAT Gateway", "group": "NGW:NatGateway", "usagetype": "{code}NatGateway-Hours"},
        "Hrs",
        0.045,
    ),
    (
        "AmazonVPC",
        {"productFamily": "VpcPublicIPv4Address", "usagetype": "{code}PublicIPv4:InUseAddress"},
        "Hrs",
        0.005,
    ),
    ("AWSELB", {"productFamily": "Load Balancer", "usagetype": "{code}LoadBalancerUsage"}, "Hrs", 0.025),
]
REGIONS = {
    "us-east-1": "",
    "us-east-2": "USE2-",
    "us-west-2": "USW2-",
    "eu-west-1": "EU-",
    "eu-central-1": "EUC1-",
}


class Pricing:
    """The service. It is in three regions only, as the real one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let every price be the usual one."""
        self.machines: dict[tuple[str, str], float] = {}

    def get_products(self, question: Question) -> dict[str, Any]:
        if question.region not in ("us-east-1", "eu-central-1", "ap-south-1"):
            raise Refused("InternalErrorException", f"the price list is not served in {question.region}")
        given = question.parameters
        wanted = {each["Field"]: each["Value"] for each in given.get("Filters") or []}
        rows = [
            row
            for region in REGIONS
            for row in self._products(given["ServiceCode"], region)
            if all(
                row["product"]["attributes"].get(key) == value or row["product"].get(key) == value
                for key, value in wanted.items()
            )
        ]
        start = int(given.get("NextToken") or 0)
        end = start + min(given.get("MaxResults") or 100, 100)
        return {
            "FormatVersion": "aws_v1",
            "PriceList": [json.dumps(row) for row in rows[start:end]],
            "NextToken": str(end) if end < len(rows) else None,
        }

    def _products(self, service: str, region: str) -> list[dict[str, Any]]:
        factor = 1.0 if region in CHEAP else 1.1
        rows = []
        if service == "AmazonEC2":
            for name, usual in MACHINES.items():
                price = self.machines.get((region, name), round(usual * factor, 4))
                attributes = {
                    "instanceType": name,
                    "operatingSystem": "Linux",
                    "tenancy": "Shared",
                    "capacitystatus": "Used",
                    "preInstalledSw": "NA",
                    "licenseModel": "No License required",
                    "marketoption": "OnDemand",
                    "operation": "RunInstances",
                    "usagetype": f"{REGIONS[region]}BoxUsage:{name}",
                }
                rows.append(_row(service, region, "Compute Instance", attributes, "Hrs", price))
        for of, attributes, unit, usual in PRODUCTS:
            if of == service:
                own = {key: value.format(code=REGIONS[region]) for key, value in attributes.items()}
                family = own.pop("productFamily")
                rows.append(_row(service, region, family, own, unit, round(usual * factor, 4)))
        return rows


def _row(
    service: str, region: str, family: str, attributes: dict[str, str], unit: str, price: float
) -> dict[str, Any]:
    sku = f"{abs(hash((service, region, attributes['usagetype']))):016X}"
    term = f"{sku}.JRTCKXETXF"
    return {
        "product": {
            "productFamily": family,
            "sku": sku,
            "attributes": {
                **attributes,
                "regionCode": region,
                "servicecode": service,
                "locationType": "AWS Region",
            },
        },
        "serviceCode": service,
        "terms": {
            "OnDemand": {
                term: {
                    "offerTermCode": "JRTCKXETXF",
                    "sku": sku,
                    "effectiveDate": "2026-11-01T00:00:00Z",
                    "termAttributes": {},
                    "priceDimensions": {
                        f"{term}.6YS6EN2CT7": {
                            "unit": unit,
                            "beginRange": "0",
                            "endRange": "Inf",
                            "rateCode": f"{term}.6YS6EN2CT7",
                            "appliesTo": [],
                            "description": f"${price} per {unit}",
                            "pricePerUnit": {"USD": f"{price:.10f}"},
                        }
                    },
                }
            }
        },
        "version": "20261101000000",
        "publicationDate": "2026-11-01T00:00:00Z",
    }
