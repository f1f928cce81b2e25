"""A GKE cluster with all that it stands on is made, found again and deleted: through Google's own client
libraries, against a fake cloud that speaks its protocols.
"""

import os
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.container_v1 import types
from google.cloud.storage import Client

from clouds.google.accounts import email
from clouds.google.client_errors import ErrorReason, GcpError
from clouds.google.machines import MachinePool
from clouds.google.quotas import required
from clouds.google.scaling import PoolSize
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, discover, extension, resources, traces
from clouds.google.storage import bucket_name
from clouds.reconciler import reconcile
from clouds.tags import Tags
from kitlib.errors import KitError

from .google.api_errors import permission_denied, stockout
from .google.fake import PROJECT
from .simulated_clock import SimulatedClock

ZONE = "us-central1-c"
END = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
PLACE = f"projects/{PROJECT}/locations/{ZONE}"


@pytest.fixture
def session(google):
    return GcpSession(PROJECT, ZONE)


@pytest.fixture
def clock(google):
    return SimulatedClock(passed=google.clock.advance)


def planned(session, name="lab", owner="ada", **machines):
    given = {"nodes": 4, "accelerator": "nvidia-tesla-t4"} | machines
    return GkePlan(session, Tags(name, owner, "spring", END), MachinePool.of(**given))


def bring_up(plan, clock, **options):
    reconcile.bring_up(resources(plan), title="cluster lab", resume="again", clock=clock, **options)


def take_down(session, clock, name="lab"):
    reconcile.take_down(discover(session, name), title="cluster lab", resume="again", clock=clock)


def cluster_of(session, name="lab"):
    return session.container("get_cluster", name=f"{PLACE}/clusters/{name}")


def test_a_cluster_is_made_with_all_that_it_stands_on_and_nothing_of_it_is_left(google, session, clock):
    bring_up(planned(session, spot=True), clock)
    made = len(google.calls)
    lab = cluster_of(session)
    assert lab.status.name == "RUNNING"
    assert lab.release_channel.channel.name == "REGULAR"
    assert lab.workload_identity_config.workload_pool == f"{PROJECT}.svc.id.goog"
    assert lab.network_config.datapath_provider.name == "ADVANCED_DATAPATH"  # it heeds NetworkPolicies
    addons = lab.addons_config
    assert addons.gcp_filestore_csi_driver_config.enabled and addons.gcs_fuse_csi_driver_config.enabled
    training = next(each for each in lab.node_pools if each.name == "training")
    assert (training.initial_node_count, training.config.spot) == (4, True)
    assert (training.autoscaling.min_node_count, training.autoscaling.max_node_count) == (0, 4)
    (gpu,) = training.config.accelerators
    assert (gpu.accelerator_type, gpu.accelerator_count) == ("nvidia-tesla-t4", 1)
    assert gpu.gpu_driver_installation_config.gpu_driver_version.name == "LATEST"
    assert all(each.config.service_account == email(session, "nodes", "lab") for each in lab.node_pools)
    take_down(session, clock)
    assert google.left() == []
    bindings = policy(session)
    assert not any("ty-" in member for each in bindings for member in each["members"])
    print(f"{made} calls to create, {len(google.calls) - made} to delete")
    assert made < 100 and len(google.calls) - made < 130


def test_independent_steps_go_on_at_the_same_time_and_each_is_polled_seldom(google, session, clock):
    bring_up(planned(session), clock)
    longest = 5 + 10 + 10 + 300 + 120  # account, network, subnet, cluster, pool, as the fake takes them
    assert clock.now() < longest + 6 * 15
    looks = Counter(each.target for each in google.calls if each.method == "container.GetCluster")
    assert max(looks.values()) <= clock.now() / 15 + 8  # the pool's make looks too


def test_making_it_again_changes_nothing(google, session, clock):
    bring_up(planned(session), clock)
    before = sorted(google.left())
    count = len(google.calls)
    bring_up(planned(session), clock)
    assert sorted(google.left()) == before
    writing = ("Create", "Set", "insert", "create", "setIamPolicy", "patch")
    verbs = [each.method.rpartition(".")[2] for each in google.calls[count:]]
    assert not [each for each in verbs if each.startswith(writing)]


class SharedClock(SimulatedClock):
    """The cloud's own time, which moves when one of those who share it has nothing else to do."""

    def __init__(self, google):
        super().__init__()
        self.clock = google.clock
        self.begin = google.clock.now

    def now(self):
        return (self.clock.now - self.begin).total_seconds()

    def receive(self, inbox, *, until, requests):
        if requests:
            return inbox.get(timeout=120)
        self.clock.advance(max(0.0, until - self.now()))
        return None


def test_two_people_at_once_make_one_cluster(google, session, clock):
    errors = []

    def work(owner, later):
        plan = planned(GcpSession(PROJECT, ZONE), owner=owner)
        plan = replace(plan, tags=replace(plan.tags, expires=END + timedelta(minutes=later)))
        try:
            bring_up(plan, SharedClock(google))
        except KitError as error:
            errors.append(error)

    people = [threading.Thread(target=work, args=each, name=each[0]) for each in (("ada", 0), ("bob", 3))]
    for each in people:
        each.start()
    for each in people:
        each.join(240)
    assert not errors
    made = [each.method for each in google.calls if each.method == "container.CreateCluster"]
    assert made and sum(each.endswith("clusters/lab") for each in google.left()) == 1
    clock.advance((END - google.clock.now).total_seconds() + 3600)
    assert not any("clusters/lab" in each for each in google.left())  # both their ends are past


def test_what_is_somebody_elses_is_refused_and_left_alone(google, session, clock):
    session.container("create_cluster", parent=PLACE, cluster=types.Cluster(name="lab", initial_node_count=1))
    clock.advance(300)
    before = google.left()
    with pytest.raises(GcpError, match="not the kit's") as caught:
        bring_up(planned(session), clock)
    assert caught.value.why is ErrorReason.TAKEN
    take_down(session, clock)
    assert google.left() == before


def test_another_cluster_of_the_kit_stays_when_one_is_deleted(google, session, clock):
    bring_up(planned(session, "lab", nodes=1), clock)
    bring_up(planned(session, "lab2", nodes=1), clock)
    assert set(traces(session)) == {"lab", "lab2"}
    alone = [each for each in google.left() if "lab2" in each]
    take_down(session, clock, "lab")
    assert set(traces(session)) == {"lab2"}
    assert set(google.left()) >= set(alone) and not any("/lab/" in each for each in google.left())
    take_down(session, clock, "lab2")
    assert google.left() == []


def test_a_stockout_is_told_in_the_clouds_words_and_the_next_call_makes_the_pool_anew(google, session, clock):
    google.fail("container.CreateNodePool", 1, stockout(ZONE))
    with pytest.raises(GcpError, match="does not have enough resources") as caught:
        bring_up(planned(session), clock)
    assert caught.value.why is ErrorReason.STOCKOUT
    bring_up(planned(session), clock)
    pools = {each.name: each.status.name for each in cluster_of(session).node_pools}
    assert pools == {"default-pool": "RUNNING", "training": "RUNNING"}


def test_a_cluster_that_the_cloud_gave_up_on_is_deleted_and_made_anew(google, session, clock):
    google.fail("container.CreateCluster", 1, stockout(ZONE))
    with pytest.raises(GcpError):
        bring_up(planned(session), clock)
    assert cluster_of(session).status.name == "ERROR"
    bring_up(planned(session), clock)
    assert cluster_of(session).status.name == "RUNNING"


def test_an_operation_that_another_process_began_is_found_and_its_end_told(google, session, clock):
    google.fail("container.CreateCluster", 1, stockout(ZONE))
    started = []

    def stop(snapshot):
        begun = any(each.name == "cluster" and each.state == "being made" for each in snapshot.steps)
        if begun and not started:
            started.append(snapshot)
            raise KeyboardInterrupt

    with pytest.raises(KitError):
        bring_up(planned(session), clock, report=stop)
    assert started
    with pytest.raises(GcpError, match="does not have enough resources"):
        bring_up(planned(GcpSession(PROJECT, ZONE)), clock)


def test_a_quota_that_is_used_up_is_named(google, session, clock):
    google.quota("NVIDIA_T4_GPUS", 0, region="us-central1")
    with pytest.raises(GcpError) as caught:
        bring_up(planned(session), clock)
    assert caught.value.why is ErrorReason.QUOTA
    assert "NVIDIA_T4_GPUS" in caught.value.fix


def test_a_cluster_deleted_by_hand_leaves_what_it_stood_on_to_be_found_from_any_machine(
    google, session, clock
):
    bring_up(planned(session), clock)
    session.container("delete_cluster", name=f"{PLACE}/clusters/lab")
    clock.advance(300)
    elsewhere = GcpSession(PROJECT)  # another machine, where nobody knows the zone
    found = {each.name for each in discover(elsewhere)}
    assert {"network", "subnet", "bucket", "repository", "end of the cluster", "account expiry"} <= found
    take_down(elsewhere, clock)
    assert google.left() == []


def test_a_half_deleted_cluster_is_deleted_to_its_end(google, session, clock):
    bring_up(planned(session), clock)
    google.deny("compute.networks.delete")
    with pytest.raises(GcpError, match=r"compute\.networks\.delete") as caught:
        take_down(session, clock)
    assert caught.value.why is ErrorReason.DENIED
    left = {each.name for each in discover(session, "lab")}
    assert "network" in left and "cluster" not in left
    google.project.denied.clear()
    take_down(GcpSession(PROJECT), clock)
    assert google.left() == []


def test_the_end_comes_without_laptop_and_cluster_and_what_still_bills_is_listed(google, session, clock):
    bring_up(planned(session), clock)
    clock.advance((END - google.clock.now).total_seconds() + 3600)
    assert not any("clusters/lab" in each for each in google.left())
    left = {each.name: each.hourly_cost for each in discover(session, "lab")}
    assert left["bucket"] and left["repository"]
    take_down(session, clock)
    assert google.left() == []


def test_the_end_can_be_put_off_and_nobody_elses_cluster_of_next_year_ends_with_it(google, session, clock):
    bring_up(planned(session), clock)
    later = Tags("lab", "ada", "spring", END + timedelta(hours=2))
    reconcile.bring_up(extension(session, later), title="lab", resume="again", clock=clock)
    clock.advance((END - google.clock.now).total_seconds() + 3600)
    assert cluster_of(session).resource_labels["trainyard-expires"] == "20261122t153000z"
    (mine,) = [each for each in policy(session) if email(session, "expiry", "lab") in each["members"][0]]
    assert mine["role"] == "roles/container.clusterAdmin"
    assert 'request.time < timestamp("2026-11-24T15:30:00Z")' in mine["condition"]["expression"]
    assert 'endsWith("/clusters/lab")' in mine["condition"]["expression"]
    clock.advance(2 * 3600)
    assert not any("clusters/lab" in each for each in google.left())


def test_the_training_pool_gets_another_size(google, session, clock):
    bring_up(planned(session), clock)
    reconcile.bring_up([PoolSize(session, Tags("lab", "", ""), 2)], title="lab", resume="again", clock=clock)
    methods = [each.method for each in google.calls if "SetNodePool" in each.method]
    assert methods == ["container.SetNodePoolAutoscaling", "container.SetNodePoolSize"]
    training = next(each for each in cluster_of(session).node_pools if each.name == "training")
    assert training.autoscaling.max_node_count == 2
    more = required(planned(session), cluster=False)  # beside the cluster that is there
    assert (more["IN_USE_ADDRESSES"], "NETWORKS" in more) == (4.0, False)


def test_what_kubernetes_leaves_is_found_and_goes_before_the_network(google, session, clock):
    bring_up(planned(session), clock)
    leave_behind(session, clock)
    names = {each.name for each in discover(session, "lab")}
    service = "a" + "0123456789abcdef" * 2
    assert {f"forwarding rule {service[:32]}", f"firewall k8s-fw-{service[:32]}", "disk pvc-1"} <= names
    assert "file system pvc-2" in names and "disk pvc-not-the-kits" not in names
    take_down(session, clock)
    assert [each for each in google.left() if "not-the-kits" not in each] == []


def test_a_bucket_with_objects_in_it_is_emptied_first(google, session, clock):
    bring_up(planned(session), clock)
    bucket = bucket_name(PROJECT, "lab")
    endpoint = os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"].removesuffix("/storage/v1/")
    client = Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": endpoint})
    for index in range(3):
        client.bucket(bucket).blob(f"models/{index}").upload_from_string("weights")
    take_down(session, clock)
    assert google.left() == []


def test_hostile_labels_name_nothing(google, session, clock):
    labels = {"trainyard-kit": "true", "trainyard-cluster": "--all"}
    body = {"name": "trainyard-evil", "labels": labels}
    session.rest("storage", "buckets.insert", project=PROJECT, body=body)
    description = "trainyard-kit=true trainyard-cluster=--flag trainyard-zone=../x"
    network = {"name": "evil", "description": description, "autoCreateSubnetworks": False}
    session.rest("compute", "networks.insert", project=PROJECT, body=network)
    clock.advance(60)
    assert traces(session) == {}
    assert discover(session) == []


def test_a_denied_right_stops_creation_and_names_its_role(google, session, clock):
    google.fail(
        "iam.projects.serviceAccounts.create",
        1,
        permission_denied("iam.serviceAccounts.create", f"projects/{PROJECT}"),
    )
    with pytest.raises(GcpError) as caught:
        bring_up(planned(session), clock)
    assert "roles/iam.serviceAccountAdmin" in caught.value.fix
    assert google.left() == []


def policy(session):
    body = {"options": {"requestedPolicyVersion": 3}}
    found = session.rest(
        "cloudresourcemanager", "projects.getIamPolicy", resource=f"projects/{PROJECT}", body=body
    )
    return found.get("bindings", [])


def leave_behind(session, clock):
    """Put there what Kubernetes would leave: a load balancer's parts, a disk, a file system."""
    service = ("a" + "0123456789abcdef" * 2)[:32]
    network = f"projects/{PROJECT}/global/networks/trainyard-lab"
    region = {"project": PROJECT, "region": session.region}
    labels = {"trainyard-kit": "true", "trainyard-cluster": "lab"}

    def insert(collection, body, **where):
        session.rest("compute", f"{collection}.insert", body=body, **where)

    insert("firewalls", {"name": f"k8s-fw-{service}", "network": network}, project=PROJECT)
    insert("targetPools", {"name": service}, **region)
    clock.advance(20)
    pool = f"projects/{PROJECT}/regions/{session.region}/targetPools/{service}"
    insert("forwardingRules", {"name": service, "target": pool}, **region)
    zone = {"project": PROJECT, "zone": ZONE}
    insert("disks", {"name": "pvc-1", "sizeGb": "10", "labels": labels}, **zone)
    insert("disks", {"name": "pvc-not-the-kits", "sizeGb": "10"}, **zone)
    share = {"tier": "BASIC_HDD", "fileShares": [{"name": "vol1", "capacityGb": "1024"}], "labels": labels}
    where = {"parent": f"projects/{PROJECT}/locations/{ZONE}", "instanceId": "pvc-2"}
    session.rest("file", "projects.locations.instances.create", body=share, **where)
    clock.advance(300)
