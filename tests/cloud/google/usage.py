"""Which APIs a project has enabled, who pays, what things cost; and the project itself.

Prices are of one moment, and few: clients are tested against their form.
"""

from .api_errors import ApiError
from .rest import Request, Rest

# In US dollars.
SKUS = {
    "6F81-5844-456A": (  # Compute Engine
        ("N1 Predefined Instance Core running in Americas", "CPU", "OnDemand", "h", 0.031611),
        ("N1 Predefined Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", 0.004237),
        ("E2 Instance Core running in Americas", "CPU", "OnDemand", "h", 0.021811),
        ("E2 Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", 0.002923),
        (
            "Spot Preemptible N1 Predefined Instance Core running in Americas",
            "CPU",
            "Preemptible",
            "h",
            0.006655,
        ),
        ("Nvidia Tesla T4 GPU running in Americas", "GPU", "OnDemand", "h", 0.35),
        (
            "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas",
            "GPU",
            "Preemptible",
            "h",
            0.11,
        ),
        ("Storage PD Capacity", "PDStandard", "OnDemand", "GiBy.mo", 0.04),
        ("Balanced PD Capacity", "SSD", "OnDemand", "GiBy.mo", 0.1),
    ),
    "CCD8-9BF1-090E": (  # Kubernetes Engine
        ("Zonal Kubernetes Clusters", "Compute", "OnDemand", "h", 0.1),
        ("Regional Kubernetes Clusters", "Compute", "OnDemand", "h", 0.1),
    ),
    "D97E-AB26-5D95": (  # Cloud Filestore
        ("Filestore Capacity Basic HDD (Standard) Iowa", "SSD", "OnDemand", "GiBy.mo", 0.16),
    ),
}
_NAMES = {"6F81-5844-456A": "Compute Engine", "CCD8-9BF1-090E": "Kubernetes Engine"}


def services_batch_enable(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.project)
    wanted = request.body.get("serviceIds") or [request.names.get("servicesId", "")]
    if len(wanted) > 20:
        raise ApiError("INVALID_ARGUMENT", "A single request can enable a maximum of 20 services at a time.")
    if not project.billing and any(each.startswith(("container", "compute")) for each in wanted):
        raise ApiError(
            "FAILED_PRECONDITION",
            f"Billing account for project '{project.number}' is not found. Billing must be enabled for "
            f"activation of service(s) '{','.join(wanted)}' to proceed.",
            reason="UREQ_PROJECT_BILLING_NOT_FOUND",
        )

    def done() -> dict:
        project.enabled |= {each.removesuffix(".googleapis.com") for each in wanted}
        return {"services": [_service(project, each) for each in wanted]}

    return rest.begin(request, f"projects/{project.number}", done=done)


def services_disable(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.project)
    service = request.names["servicesId"]

    def done() -> dict:
        project.enabled.discard(service.removesuffix(".googleapis.com"))
        return {"service": _service(project, service)}

    return rest.begin(request, f"projects/{project.number}", done=done)


def services_get(rest: Rest, request: Request) -> dict:
    return _service(rest.world.project(request.project), request.names["servicesId"])


def services_batch_get(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.project)
    return {"services": [_service(project, each.rsplit("/", 1)[-1]) for each in request.lists["names"]]}


def services_list(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.project)
    every = [_service(project, f"{each}.googleapis.com") for each in sorted(project.enabled)]
    if request.query.get("filter", "state:ENABLED") != "state:ENABLED":
        every = []
    return rest.listed(request.without("filter"), every, "services")


def billing_info(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.project)
    account = "billingAccounts/012345-567890-ABCDEF" if project.billing else ""
    return {
        "name": f"projects/{project.id}/billingInfo",
        "projectId": project.id,
        "billingAccountName": account,
        "billingEnabled": project.billing,
    }


def skus(rest: Rest, request: Request) -> dict:
    service = request.names["servicesId"]
    if service not in SKUS:
        raise ApiError("NOT_FOUND", f"Service services/{service} not found.")
    return rest.listed(
        request, [_sku(service, number, *each) for number, each in enumerate(SKUS[service])], "skus"
    )


def billed_services(rest: Rest, request: Request) -> dict:
    every = [
        {"name": f"services/{each}", "serviceId": each, "displayName": _NAMES.get(each, "Cloud Filestore")}
        for each in SKUS
    ]
    return rest.listed(request, every, "services")


def project_get(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.path.split("/")[1])
    thing = rest.store.get("cloudresourcemanager", f"projects/{project.id}")
    if request.route.version == "v1":
        return {"projectId": project.id, "projectNumber": str(project.number), "lifecycleState": "ACTIVE"}
    return thing.body


def _service(project, host: str) -> dict:
    name = host.removesuffix(".googleapis.com")
    return {
        "name": f"projects/{project.number}/services/{host}",
        "parent": f"projects/{project.number}",
        "config": {"name": host, "title": name},
        "state": "ENABLED" if name in project.enabled else "DISABLED",
    }


def _sku(service: str, number: int, words: str, group: str, usage: str, unit: str, dollars: float) -> dict:
    price = {"currencyCode": "USD", "units": str(int(dollars)), "nanos": round(dollars % 1 * 10**9)}
    return {
        "name": f"services/{service}/skus/{number:04X}-0000-0000",
        "skuId": f"{number:04X}-0000-0000",
        "description": words,
        "category": {
            "serviceDisplayName": _NAMES.get(service, "Cloud Filestore"),
            "resourceFamily": "Storage" if unit == "GiBy.mo" else "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": ["us-central1", "us-east1", "us-west1"],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "currencyConversionRate": 1,
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
                },
            }
        ],
        "serviceProviderName": "Google",
    }


SPECIALS = {
    "serviceusage.services.batchEnable": services_batch_enable,
    "serviceusage.services.enable": services_batch_enable,
    "serviceusage.services.disable": services_disable,
    "serviceusage.services.get": services_get,
    "serviceusage.services.batchGet": services_batch_get,
    "serviceusage.services.list": services_list,
    "cloudbilling.projects.getBillingInfo": billing_info,
    "cloudbilling.services.skus.list": skus,
    "cloudbilling.services.list": billed_services,
    "cloudresourcemanager.projects.get": project_get,
}
