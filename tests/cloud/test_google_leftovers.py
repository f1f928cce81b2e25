"""What the fake says is left, and what it does not let go: as the real one, of which bills tell."""

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.container_v1 import types
from google.cloud.storage import Client
from googleapiclient.errors import HttpError

from .google.clients import Clients
from .google.fake import PROJECT, FakeGoogle

ROOT = f"projects/{PROJECT}"
PLACE = f"{ROOT}/locations/us-central1-c"


@pytest.fixture
def google():
    with FakeGoogle() as fake:
        yield fake


@pytest.fixture
def clients(google):
    opened = Clients(google.endpoints)
    yield opened
    opened.close()


def test_a_network_in_use_stays_and_its_operation_says_by_whom(google, clients):
    compute = clients.rest("compute")
    network = f"{ROOT}/global/networks/lab"
    compute.networks().insert(project=PROJECT, body={"name": "lab", "autoCreateSubnetworks": False}).execute()
    where = {"project": PROJECT, "region": "us-central1"}
    subnet = {"name": "lab", "network": network, "ipCidrRange": "10.0.0.0/20"}
    compute.subnetworks().insert(**where, body=subnet).execute()
    lab = types.Cluster(name="lab", initial_node_count=1, network="lab", subnetwork="lab")
    clients.container.create_cluster(parent=PLACE, cluster=lab)
    google.clock.advance(300)

    def delete(collection, **what):
        begun = collection.delete(**what).execute()
        google.clock.advance(10)
        return google.rest.store.get("compute", begun["selfLink"].partition("/v1/")[2]).body.get("error")

    for refused in (
        delete(compute.networks(), project=PROJECT, network="lab"),
        delete(compute.subnetworks(), **where, subnetwork="lab"),
    ):
        assert refused["errors"][0]["code"] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
        assert "is already being used by" in refused["errors"][0]["message"]
    firewalls = compute.firewalls().list(project=PROJECT).execute()["items"]
    assert all(each["network"].endswith("networks/lab") for each in firewalls)
    clients.container.delete_cluster(name=f"{PLACE}/clusters/lab")
    google.clock.advance(240)
    assert delete(compute.subnetworks(), **where, subnetwork="lab") is None
    assert delete(compute.networks(), project=PROJECT, network="lab") is None
    assert google.left() == []


def test_the_size_of_a_pool_is_that_of_its_groups_of_machines(google, clients):
    lab = types.Cluster(name="lab", initial_node_count=1)
    clients.container.create_cluster(parent=PLACE, cluster=lab)
    google.clock.advance(300)
    name = f"{PLACE}/clusters/lab/nodePools/default-pool"
    clients.container.set_node_pool_size({"name": name, "node_count": 3})
    google.clock.advance(90)
    pool = clients.container.get_node_pool(name=name)
    group = pool.instance_group_urls[0].rsplit("/", 1)[1]
    managers = clients.rest("compute").instanceGroupManagers()
    found = managers.get(project=PROJECT, zone="us-central1-c", instanceGroupManager=group).execute()
    assert (found["targetSize"], pool.initial_node_count) == (3, 1)


def test_a_cluster_needs_a_network_and_an_account_that_are_there(clients):
    def make(**fields):
        lab = types.Cluster(name="lab", **fields)
        with pytest.raises(exceptions.InvalidArgument) as refused:
            clients.container.create_cluster(parent=PLACE, cluster=lab)
        return refused.value.message

    assert make(initial_node_count=1, network="nowhere") == 'Network "nowhere" does not exist.'
    account = f"nobody@{PROJECT}.iam.gserviceaccount.com"
    pool = types.NodePool(name="a", initial_node_count=1, config=types.NodeConfig(service_account=account))
    assert make(node_pools=[pool]) == f'Service account "{account}" does not exist.'
    assert make() == "Cluster.initial_node_count must be greater than zero."


def test_a_policy_names_only_accounts_that_are_there_and_keeps_those_that_were(google, clients):
    projects = clients.rest("cloudresourcemanager", "v3").projects()
    email = f"reader@{PROJECT}.iam.gserviceaccount.com"
    binding = {"role": "roles/artifactregistry.reader", "members": [f"serviceAccount:{email}"]}
    asked = projects.setIamPolicy(resource=ROOT, body={"policy": {"bindings": [binding]}})
    with pytest.raises(HttpError, match=f"Service account {email} does not exist"):
        asked.execute()
    accounts = clients.rest("iam").projects().serviceAccounts()
    accounts.create(name=ROOT, body={"accountId": "reader"}).execute()
    policy = asked.execute()
    accounts.delete(name=f"{ROOT}/serviceAccounts/{email}").execute()
    assert "deleted:serviceAccount:reader@" in google.left()[0]
    stale = projects.setIamPolicy(resource=ROOT, body={"policy": {"bindings": [], "etag": "BwOLD="}})
    with pytest.raises(HttpError, match="concurrent policy changes"):
        stale.execute()
    projects.setIamPolicy(resource=ROOT, body={"policy": {"bindings": [], "etag": policy["etag"]}}).execute()
    assert google.left() == []


def test_a_bucket_goes_when_it_is_empty(google, clients):
    storage = clients.rest("storage")
    storage.buckets().insert(
        project=PROJECT, body={"name": "lab", "labels": {"trainyard-kit": "true"}}
    ).execute()
    options = {"api_endpoint": google.url}
    with Client(PROJECT, credentials=AnonymousCredentials(), client_options=options) as client:
        client.bucket("lab").blob("trainers/mnist.py").upload_from_string("print(1)")
    assert storage.objects().get_media(bucket="lab", object="trainers/mnist.py").execute() == b"print(1)"
    listed = storage.objects().list(bucket="lab", prefix="trainers/").execute()
    assert [each["name"] for each in listed["items"]] == ["trainers/mnist.py"]
    with pytest.raises(HttpError, match="not empty"):
        storage.buckets().delete(bucket="lab").execute()
    storage.objects().delete(bucket="lab", object="trainers/mnist.py").execute()
    storage.buckets().delete(bucket="lab").execute()
    assert google.left() == []
