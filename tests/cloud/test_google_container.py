"""The fake container API speaks as the real one does: to google-cloud-container's own client, over gRPC."""

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import ClusterManagerClient, types
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

from .google.api_errors import stockout
from .google.fake import PROJECT, FakeGoogle

PLACE = f"projects/{PROJECT}/locations/us-central1-c"
LAB = f"{PLACE}/clusters/lab"
Running = types.Operation.Status


@pytest.fixture
def google():
    with FakeGoogle() as fake:
        yield fake


@pytest.fixture
def client(google):
    address = google.endpoints["CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"].removeprefix("http://")
    with grpc.insecure_channel(address) as channel:
        yield ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel))


@pytest.fixture
def lab(google, client):
    client.create_cluster(parent=PLACE, cluster=types.Cluster(name="lab", initial_node_count=1))
    google.clock.advance(300)
    return client.get_cluster(name=LAB)


def t4s(count, **fields):
    config = types.NodeConfig(
        machine_type="n1-standard-4",
        disk_type="pd-standard",
        accelerators=[types.AcceleratorConfig(accelerator_type="nvidia-tesla-t4", accelerator_count=1)],
    )
    return types.NodePool(name="gpu", initial_node_count=count, config=config, **fields)


def test_a_cluster_takes_its_time_and_hands_out_the_backing_endpoint(google, client):
    google.backing("https://127.0.0.1:6443", "Q0E=")
    begun = client.create_cluster(parent=PLACE, cluster=types.Cluster(name="lab", initial_node_count=2))
    name = f"{PLACE}/operations/{begun.name}"
    seen = [begun.status]
    for seconds in (3, 296, 1):
        google.clock.advance(seconds)
        seen.append(client.get_operation(name=name).status)
    assert seen == [Running.PENDING, Running.RUNNING, Running.RUNNING, Running.DONE]
    lab = client.get_cluster(name=LAB)
    assert lab.status == types.Cluster.Status.RUNNING
    assert (lab.endpoint, lab.master_auth.cluster_ca_certificate) == ("127.0.0.1:6443", "Q0E=")
    assert [
        each.name for each in client.list_clusters(parent=f"projects/{PROJECT}/locations/-").clusters
    ] == ["lab"]
    client.delete_cluster(name=LAB)
    assert any(each.endswith("clusters/lab") for each in google.left())
    google.clock.advance(240)
    assert google.left() == []
    with pytest.raises(exceptions.NotFound):
        client.get_cluster(name=LAB)


def test_labels_that_are_none_are_refused(client):
    lab = types.Cluster(name="lab", initial_node_count=1, resource_labels={"trainyard:kit": "true"})
    with pytest.raises(exceptions.InvalidArgument, match="violates format constraints"):
        client.create_cluster(parent=PLACE, cluster=lab)


def test_a_cluster_has_one_operation_at_a_time(google, client, lab):
    begun = client.create_node_pool(parent=LAB, node_pool=t4s(1))
    with pytest.raises(
        exceptions.FailedPrecondition, match=f"{begun.name} is currently upgrading cluster lab"
    ):
        client.delete_cluster(name=LAB)
    with pytest.raises(exceptions.AlreadyExists):
        client.create_cluster(parent=PLACE, cluster=types.Cluster(name="lab", initial_node_count=1))


def test_a_zone_without_gpus_leaves_a_node_pool_in_an_error(google, client, lab):
    google.fail("container.CreateNodePool", 1, stockout("us-central1-c"))
    begun = client.create_node_pool(parent=LAB, node_pool=t4s(1))
    google.clock.advance(120)
    ended = client.get_operation(name=f"{PLACE}/operations/{begun.name}")
    assert (ended.status, ended.error.code) == (Running.DONE, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert ended.nodepool_conditions[0].code == types.StatusCondition.Code.GCE_STOCKOUT
    assert client.get_node_pool(name=f"{LAB}/nodePools/gpu").status == types.NodePool.Status.ERROR


def test_a_cancelled_operation_aborts_and_ends(google, client, lab):
    begun = client.create_node_pool(parent=LAB, node_pool=t4s(1))
    name = f"{PLACE}/operations/{begun.name}"
    client.cancel_operation(name=name)
    assert client.get_operation(name=name).status == Running.ABORTING
    google.clock.advance(10)
    assert client.get_operation(name=name).error.code == grpc.StatusCode.CANCELLED.value[0]
    client.delete_cluster(name=LAB)


def test_what_goes_beyond_a_quota_is_refused_at_once(google, client, lab):
    google.quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    with pytest.raises(
        exceptions.PermissionDenied, match="\"NVIDIA_T4_GPUS\": request requires '2.0' and is short '1.0'"
    ):
        client.create_node_pool(parent=LAB, node_pool=t4s(2))


def test_an_api_that_is_not_enabled_says_so_with_a_reason_and_a_link(google, client):
    google.project.enabled.discard("container")
    with pytest.raises(exceptions.PermissionDenied) as refused:
        client.list_clusters(parent=PLACE)
    assert refused.value.reason == "SERVICE_DISABLED"
    assert refused.value.metadata["service"] == "container.googleapis.com"


def test_the_nth_call_fails_and_a_cut_line_answers_nothing(google, client, lab):
    google.project.denied.add("container.clusters.delete")
    with pytest.raises(exceptions.PermissionDenied, match="container.clusters.delete"):
        client.delete_cluster(name=LAB)
    google.project.denied.clear()
    google.cut(1, "after")
    for _ in range(2):
        with pytest.raises(exceptions.ServiceUnavailable):
            client.delete_cluster(name=LAB, retry=None)
    google.clear_faults()
    google.clock.advance(240)
    assert google.left() == []
    assert [each.method for each in google.calls].count("container.DeleteCluster") == 3
