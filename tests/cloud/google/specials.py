"""What single services do besides keeping resources: enabling APIs, billing, projects, service accounts.

Each function is one method of a discovery document, named in `SPECIALS`.
"""

from . import quotas
from .refusals import ApiError
from .rest import Request, Rest

# Public prices of one moment, in US dollars: the fake's clients are tested against the form, not the figures.
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


def region(rest: Rest, request: Request) -> dict:
    name = request.names["region"]
    body = rest.store.get("compute", request.path).body
    return body | {"quotas": _quotas(rest, request.project, name, quotas.REGIONAL)}


def regions(rest: Rest, request: Request) -> dict:
    found = [
        each.body | {"quotas": _quotas(rest, request.project, each.body["name"], quotas.REGIONAL)}
        for each in rest.store.children("compute", request.path)
    ]
    return {"kind": "compute#regionList", **rest.listed(request, found, "items")}


def compute_project(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.names["project"])
    return {
        "kind": "compute#project",
        "id": str(project.number),
        "name": project.id,
        "defaultServiceAccount": f"{project.number}-compute@developer.gserviceaccount.com",
        "quotas": _quotas(rest, project.id, None, quotas.GLOBAL),
    }


def operation_wait(rest: Rest, request: Request) -> dict:
    """Return the operation as it is; the real one waits up to two minutes."""
    return rest.store.get("compute", request.path.removesuffix("/wait")).body


def project_get(rest: Rest, request: Request) -> dict:
    project = rest.world.project(request.path.split("/")[1])
    thing = rest.store.get("cloudresourcemanager", f"projects/{project.id}")
    if request.route.version == "v1":
        return {"projectId": project.id, "projectNumber": str(project.number), "lifecycleState": "ACTIVE"}
    return thing.body


def service_account_create(rest: Rest, request: Request) -> dict:
    name = request.body.get("accountId", "")
    project = rest.world.project(request.project)
    email = f"{name}@{project.id}.iam.gserviceaccount.com"
    if not 6 <= len(name) <= 30:
        raise ApiError("INVALID_ARGUMENT", "The account ID does not have a length between 6 and 30.")
    if rest.store.has("iam", f"{request.path}/{email}"):
        raise ApiError(
            "ALREADY_EXISTS", f"Service account {name} already exists within project projects/{project.id}."
        )
    body = {
        **request.body.get("serviceAccount", {}),
        "email": email,
        "projectId": project.id,
        "uniqueId": str(10**20 + len(rest.store.every("iam"))),
        "oauth2ClientId": str(10**20 + len(rest.store.every("iam"))),
    }
    return rest.create(request, email, body)


def _service(project, host: str) -> dict:
    name = host.removesuffix(".googleapis.com")
    return {
        "name": f"projects/{project.number}/services/{host}",
        "parent": f"projects/{project.number}",
        "config": {"name": host, "title": name},
        "state": "ENABLED" if name in project.enabled else "DISABLED",
    }


def _quotas(rest: Rest, name: str, where: str | None, defaults: dict[str, float]) -> list[dict]:
    project = rest.world.project(name)
    own = {metric for place, metric in project.quotas if place == where}
    used = quotas.usage(rest.container, project.id, where)
    return [
        {"metric": each, "limit": quotas.limit(project, where, each), "usage": used.get(each, 0.0)}
        for each in {**defaults, **dict.fromkeys(own)}
    ]


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
    "compute.regions.get": region,
    "compute.regions.list": regions,
    "compute.projects.get": compute_project,
    "compute.*Operations.wait": operation_wait,
    "cloudresourcemanager.projects.get": project_get,
    "iam.projects.serviceAccounts.create": service_account_create,
}
