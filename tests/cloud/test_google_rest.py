"""The fake's HTTP services speak as the real ones do: to google-api-python-client's own clients."""

from http.client import HTTPException

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from .google.api_errors import ApiError
from .google.fake import PROJECT, FakeGoogle

ROOT = f"projects/{PROJECT}"
ZONE = {"project": PROJECT, "zone": "us-central1-c"}


@pytest.fixture
def google():
    with FakeGoogle() as fake:
        yield fake


@pytest.fixture
def client(google):
    def open_client(service, version="v1"):
        address = google.endpoints[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"]
        options = ClientOptions(api_endpoint=address)
        return build(service, version, credentials=AnonymousCredentials(), client_options=options)

    return open_client


def refused(request):
    with pytest.raises(HttpError) as error:
        request.execute(num_retries=0)
    return error.value


def test_an_api_is_enabled_in_time_and_until_then_refused(google, client):
    google.project.enabled.discard("file")
    instances = client("file").projects().locations().instances()
    asked = instances.list(parent=f"{ROOT}/locations/-")
    reasons = [each["reason"] for each in refused(asked).error_details if "reason" in each]
    assert reasons == ["SERVICE_DISABLED"]
    usage = client("serviceusage")
    body = {"serviceIds": ["file.googleapis.com"]}
    begun = usage.services().batchEnable(parent=ROOT, body=body).execute()
    assert not begun["done"]
    google.clock.advance(20)
    assert usage.operations().get(name=begun["name"]).execute()["done"]
    assert asked.execute() == {}


def test_zones_quotas_and_prices_are_there(google, client):
    google.quota("NVIDIA_T4_GPUS", 0, region="us-central1")
    compute, billing = client("compute"), client("cloudbilling")
    region = compute.regions().get(project=PROJECT, region="us-central1").execute()
    assert {each["metric"]: each["limit"] for each in region["quotas"]}["NVIDIA_T4_GPUS"] == 0
    found = (
        compute.acceleratorTypes().aggregatedList(project=PROJECT, filter="name=nvidia-tesla-t4").execute()
    )
    assert "zones/us-central1-c" in found["items"]
    assert refused(compute.zones().get(project=PROJECT, zone="us-centrall-c")).status_code == 404
    assert billing.projects().getBillingInfo(name=ROOT).execute()["billingEnabled"]
    pages, request = [], billing.services().skus().list(parent="services/6F81-5844-456A", pageSize=2)
    while request is not None:
        pages.append(request.execute())
        request = billing.services().skus().list_next(request, pages[-1])
    assert len(pages) > 2
    assert all(each["pricingInfo"] for page in pages for each in page["skus"])


def test_what_is_not_of_the_schema_is_refused(client):
    disks = client("compute").disks()
    assert 'Unknown name "size"' in refused(disks.insert(**ZONE, body={"name": "a", "size": 1})).reason
    instances = client("file").projects().locations().instances()
    place = f"{ROOT}/locations/us-central1-c"
    wrong = instances.create(parent=place, instanceId="a", body={"tier": "GOLD"})
    assert "Invalid value at 'tier'" in refused(wrong).reason
    hostile = {"name": "a", "labels": {"owner": "Robert'); drop"}}
    assert "violates format constraints" in refused(disks.insert(**ZONE, body=hostile)).reason


def test_a_file_share_is_made_in_time_and_found_by_its_labels(google, client):
    instances = client("file").projects().locations().instances()
    body = {"tier": "BASIC_HDD", "labels": {"trainyard-kit": "true"}}
    place = f"{ROOT}/locations/us-central1-c"
    instances.create(parent=place, instanceId="share", body=body).execute()
    listed = instances.list(parent=f"{ROOT}/locations/-", filter="labels.trainyard-kit=true")
    assert listed.execute()["instances"][0]["state"] == "CREATING"
    assert refused(instances.create(parent=place, instanceId="share", body=body)).status_code == 409
    google.clock.advance(200)
    assert listed.execute()["instances"][0]["state"] == "READY"
    instances.delete(name=f"{place}/instances/share").execute()
    google.clock.advance(60)
    assert google.left() == []


def test_faults_strike_where_they_are_wanted(google, client):
    zones = client("compute").zones()
    google.fail("compute.zones.list", 2, ApiError("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric."))
    zones.list(project=PROJECT).execute()
    assert refused(zones.list(project=PROJECT)).status_code == 429
    google.cut(1, "before", calls=2)  # httplib2 itself asks a second time
    with pytest.raises((OSError, HTTPException)):
        zones.list(project=PROJECT).execute(num_retries=0)
    zones.list(project=PROJECT).execute()
