"""A GKE cluster at the fake Google: created, found, scaled, extended, deleted, by Google's own clients."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput, ClusterNotFound, KitError, PreflightFailed, ProviderFailed
from trainyard_kit.clouds import resources
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Phase, Steps

from ..rows import slow
from .gke_lifecycle import NAME, OPTIONS, PLACE, ZONE, GkeProcesses, described
from .google.api_errors import ApiError, stockout
from .google.fake import PROJECT
from .ready_nodes import ReadyNodes

# Nothing before these costs; accounts, roles and schedules are free.
COSTS = ("networks", "subnetworks", "routers", "buckets", "repositories", "CreateCluster", "CreateNodePool")


@pytest.fixture
def user(google, clock, state_home, monkeypatch):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    return GkeProcesses(google, monkeypatch.setattr)


def create_by_hand():
    body = {"cluster": {"name": NAME, "initialNodeCount": 1}}
    GcpSession(PROJECT).request("POST", "container", f"{PLACE}/clusters", body)


def training(name=NAME):
    return next(pool for pool in described(name).node_pools if pool.name == "training")


def end_of(lab):
    return lab._describe().tags.expires


def pass_until(google, when):
    google.clock.sleep((when - google.clock.date()).total_seconds())


def clusters_left(google):
    return [resource for resource in google.left() if "/clusters/" in resource]


def test_a_cluster_is_created_described_and_deleted_and_nothing_is_left(google, user):
    lab = user.create(hours=4)
    assert lab.status["state"] == "running" and lab.status["zone"] == ZONE
    assert timedelta(hours=3.9) < end_of(lab) - datetime.now(UTC) < timedelta(hours=4.1)
    cluster, pool = described(), training()
    assert cluster.release_channel.channel.name == "REGULAR"
    assert cluster.workload_identity_config.workload_pool == f"{PROJECT}.svc.id.goog"
    assert cluster.network_config.datapath_provider.name == "ADVANCED_DATAPATH"  # it enforces NetworkPolicies
    addons = cluster.addons_config
    assert addons.gcp_filestore_csi_driver_config.enabled and addons.gcs_fuse_csi_driver_config.enabled
    (gpu,) = pool.config.accelerators
    assert (gpu.accelerator_type, gpu.accelerator_count) == ("nvidia-tesla-t4", 1)
    assert (pool.autoscaling.min_node_count, pool.autoscaling.max_node_count) == (0, 2)
    assert all("nodes" in pool.config.service_account for pool in cluster.node_pools)
    assert {"cluster", "network", "bucket", "repository"} <= {row["resource"] for row in lab.resources()}
    calls_before = len(google.calls)
    lab.delete()
    assert google.left() == []
    lab.delete()  # once more is fine
    assert GkeCluster.find(NAME, project=PROJECT) is None
    with pytest.raises(ClusterNotFound, match="no such cluster"):
        lab.extend(4, confirm=True)
    assert calls_before < 180 and not lab.resources().rows


def test_the_schedules_that_end_it_are_there_before_anything_that_costs(google, user):
    user.create()
    changed = [call for call in google.calls if call.changes]
    ends = [call.number for call in changed if call.method.endswith("jobs.create")]
    rights = [call.number for call in changed if call.method.endswith("projects.setIamPolicy")]
    costs = [call.number for call in changed if set(call.method.split(".")) & set(COSTS)]
    assert len(ends) == 3 and len(costs) >= 6
    assert rights[0] < min(costs) and max(ends) < min(costs)


def test_a_second_creation_changes_nothing_and_keeps_the_end(google, user):
    end = end_of(user.create(hours=4))
    count = len(google.calls)
    for fewer in ({}, {"hours": 2}):
        assert end_of(user.create(**fewer)) == end
    assert not [call for call in google.calls[count:] if call.changes]
    assert end_of(user.create(hours=8)) - end > timedelta(hours=3.9)
    with pytest.raises(BadInput, match="other machines|spot=False"):
        user.create(spot=True)
    with pytest.raises(BadInput, match=ZONE):
        user.create(zone="us-central1-a")


def test_its_end_comes_without_the_laptop_and_what_still_bills_is_listed(google, user):
    lab = user.create(hours=4)
    pass_until(google, end_of(lab) + timedelta(hours=1))
    assert clusters_left(google) == []
    assert {"OK"} <= {call.status for call in google.scheduler.fired} <= {"OK", "NOT_FOUND"}
    left = {item.name: item.costs for item in GkeCluster.find_resources(GcpSession(PROJECT), NAME)}
    assert left["bucket"] and left["repository"]
    user.delete()
    assert google.left() == []


def test_an_end_that_meets_an_upgrade_is_tried_again(google, user):
    lab = user.create(hours=4)
    pass_until(google, end_of(lab) - timedelta(minutes=1))
    busy = ApiError("FAILED_PRECONDITION", "Operation op-1 is currently upgrading cluster lab.")
    google.fail("container.Delete*", 1, busy, times=3)
    pass_until(google, end_of(lab) + timedelta(hours=3))
    assert clusters_left(google) == []
    assert [call.status for call in google.scheduler.fired].count("FAILED_PRECONDITION") == 3


def test_extending_moves_the_schedules_the_rights_the_labels_and_the_exclusion(google, user):
    lab = user.create(hours=4)
    before = end_of(lab)
    with pytest.raises(BadInput, match="needs confirmation"):
        lab.extend(8)
    assert "expires at" in str(lab.extend(8, confirm=True))
    assert end_of(lab) - before > timedelta(hours=3.9)
    assert "expires at" in str(lab.extend(6))  # sooner than that: nobody has to agree
    pass_until(google, before + timedelta(hours=1))
    assert clusters_left(google), "the old end is past"
    google.container.maintain(900)
    assert lab.status["state"] == "running", "no upgrade before the end"
    pass_until(google, end_of(lab) + timedelta(hours=1))
    assert clusters_left(google) == []


def test_a_schedule_that_repeats_next_year_does_not_delete_next_years_cluster(google, user):
    end = end_of(user.create(hours=4))
    jobs = [item for item in google.rest.store.every("cloudscheduler") if "/jobs/" in item.path]
    assert len(jobs) == 3
    pass_until(google, end.replace(year=end.year + 1) - timedelta(days=1))
    create_by_hand()
    pass_until(google, end.replace(year=end.year + 1) + timedelta(days=1))
    assert clusters_left(google), [call for call in google.scheduler.fired if call.at.year > end.year]


def test_the_training_pool_is_a_step_of_its_own_whose_price_is_agreed_to(google, user):
    lab = user.create(pool=False, accelerator=None)
    lab.kube = ReadyNodes(lab.pool, 99)
    assert len(described().node_pools) == 1
    with pytest.raises(BadInput, match="needs confirmation"):
        user.create(confirm=False)
    assert user.create(min_nodes=1)._describe().machines.accelerator == "nvidia-tesla-t4"
    with pytest.raises(BadInput, match="needs confirmation"):
        lab.scale(4)
    for nodes, least in ((2, 1), (4, 1), (0, 0)):
        lab.scale(nodes, confirm=True)
        pool, limits = training(), training().autoscaling
        assert (limits.min_node_count, limits.max_node_count) == (least, nodes)
        assert google.container.sizes[pool.self_link] == nodes == lab._describe().machines.count
    user.delete()
    assert google.left() == []


NONE_LEFT = ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources available.")
NO_QUOTA = ("QUOTA_EXCEEDED", "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 0.0 in region us-central1.")
NO_ADDRESS = ("CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated.")


@pytest.fixture
def shown(google, monkeypatch):
    """What each step's row said, and when."""
    rows, update = [], Steps.update

    def note(steps, name, phase, words="", **more):
        rows.append((google.clock.now(), name, phase, words))
        update(steps, name, phase, words, **more)

    monkeypatch.setattr(Steps, "update", note)
    return rows


def seconds_until(rows, step, words):
    """Seconds from the beginning of a step to a row that says this."""
    began = next(when for when, name, phase, _ in rows if name == step and phase is Phase.RUNNING)
    return next(when for when, name, _, message in rows if name == step and words in message) - began


def test_machines_that_are_not_given_are_explained_within_a_minute(google, user, shown):
    google.world.launches["training"] = NONE_LEFT
    google.delay("CREATE_NODE_POOL", 2100)
    google.fail("container.CreateNodePool", 1, stockout(ZONE), times=9)
    with pytest.raises(GcpError, match="enough resources"):
        user.create()
    assert seconds_until(shown, "training pool", "enough resources") <= 60


@pytest.mark.parametrize(
    ("pool", "kind", "failure", "fix"),
    [
        ("training", "NODE_POOL", NO_QUOTA, "iam-admin/quotas"),
        ("default-pool", "CLUSTER", NO_QUOTA, "iam-admin/quotas"),
        *slow(("training", "NODE_POOL", NO_ADDRESS, "private=True")),
    ],
)
def test_a_permanent_failure_ends_the_call_and_the_same_call_resumes(google, user, pool, kind, failure, fix):
    google.world.launches[pool] = failure
    google.delay(f"CREATE_{kind}", 2100)
    before = google.clock.now()
    with pytest.raises(GcpError) as raised:
        user.create()
    assert (
        fix in raised.value.fix and failure[1][:20] in raised.value.what and google.clock.now() - before < 900
    )
    google.world.launches.clear()
    lab = user.create()
    lab.kube = ReadyNodes(lab.pool, 2)
    google.world.launches["training"], before = failure, google.clock.now()
    with pytest.raises(ProviderFailed) as raised:
        lab.scale(4, confirm=True)
    assert fix in raised.value.fix and google.clock.now() - before < 300


def test_private_nodes_get_a_router_and_a_network_that_is_given_stays(google, user):
    user.create(private=True, allowed_cidrs=["203.0.113.0/24"])
    cluster = described()
    assert cluster.network_config.default_enable_private_nodes
    ranges = cluster.control_plane_endpoints_config.ip_endpoints_config.authorized_networks_config.cidr_blocks
    assert [range_.cidr_block for range_ in ranges] == ["203.0.113.0/24"]
    assert any("/routers/trainyard-lab" in resource for resource in google.left())
    user.delete()
    assert google.left() == []
    user.create(request={"network": "default", "subnetwork": "default", "resourceLabels": {"team": "vision"}})
    assert described().network.endswith("default") and described().resource_labels["team"] == "vision"
    assert not any("/networks/" in resource for resource in google.left())
    user.delete()
    assert google.left() == [] and google.rest.store.has(
        "compute", f"projects/{PROJECT}/global/networks/default"
    )


def test_a_stockout_is_told_with_the_next_zone_which_is_taken_if_agreed(google, user):
    google.fail("container.CreateNodePool", 1, stockout(ZONE))
    user.create()
    assert training().locations == ["us-central1-a"]
    user.delete()
    google.fail("container.CreateNodePool", 1, stockout(ZONE), times=9)
    with pytest.raises(GcpError, match="not have enough resources|no capacity") as caught:
        user.create()
    assert caught.value.reason is ErrorReason.STOCKOUT
    google.clear_faults()
    assert user.create()._describe().machines.count == 2
    user.delete()
    assert google.left() == []


@pytest.mark.parametrize("method", ["container.CreateCluster", "container.CreateNodePool"])
def test_the_same_call_replaces_resources_that_the_cloud_gave_up_on(google, user, method):
    failure = stockout(ZONE)
    google.fail(method, 1, failure, times=9)
    with pytest.raises(GcpError):
        user.create()
    google.clear_faults()
    user.create()
    assert described().status.name == "RUNNING"
    assert {pool.status.name for pool in described().node_pools} == {"RUNNING"}


def test_nodes_that_google_did_not_give_are_named_by_the_next_call(google, user, caplog):
    user.create()
    (cluster,) = google.world.clusters.values()
    pool = next(pool for pool in cluster.node_pools if pool.name == "training")
    pool.status, pool.status_message = "RUNNING_WITH_ERROR", "1 of 2 nodes: the zone has none left"
    user.create()
    assert "1 of 2 nodes: the zone has none left" in caplog.text


def test_foreign_resources_are_refused_and_stay(google, user):
    session = GcpSession(PROJECT, ZONE)
    create_by_hand()
    network = {"name": "trainyard-lab", "autoCreateSubnetworks": False}
    session.request("POST", "compute", f"projects/{PROJECT}/global/networks", network)
    google.clock.sleep(300)
    before = google.left()
    with pytest.raises(PreflightFailed, match="not the kit's"):
        user.create()
    user.delete()
    assert google.left() == before


def test_labels_that_somebody_wrote_name_nothing_that_is_the_kits(google, user):
    session = GcpSession(PROJECT, ZONE)
    labels = {"trainyard-kit": "true", "trainyard-cluster": NAME, "trainyard-zone": "-us-central1-c"}
    for name in (NAME, "--all"):
        body = {"name": f"of-somebody{name}", "labels": labels | {"trainyard-cluster": name}}
        session.request("POST", "storage", "b", body, project=PROJECT)
    words = "trainyard-kit=true trainyard-cluster=--flag trainyard-zone=../x"
    network = {"name": "evil", "description": words, "autoCreateSubnetworks": False}
    session.request("POST", "compute", f"projects/{PROJECT}/global/networks", network)
    before = google.left()
    assert GkeCluster.find_resources(GcpSession(PROJECT)) == []
    user.delete()
    assert google.left() == before


def test_another_cluster_of_the_kit_stays_when_one_is_deleted(google, user):
    user.create()
    user.create(name="lab2")
    alone = {resource for resource in google.left() if "lab2" in resource}
    user.delete()
    assert set(google.left()) == alone
    user.delete(name="lab2")
    assert google.left() == []


def test_all_is_listed_and_deleted_from_another_machine(google, user, monkeypatch, tmp_path):
    user.create()
    google.clock.sleep(60)
    described()
    GcpSession(PROJECT).request("DELETE", "container", f"{PLACE}/clusters/{NAME}")  # by hand
    google.clock.sleep(300)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # where nobody knows the zone
    table = resources.list_resources("gke", project=PROJECT)
    assert {row["cluster"] for row in table} == {NAME}
    kinds = {row["resource"] for row in table}
    assert {"network", "subnet", "bucket", "repository", "end of the cluster", "account expiry"} <= kinds
    assert resources.delete_resources("gke", project=PROJECT, dry_run=False).rows == []
    assert google.left() == [] and not resources.list_resources("gke", project=PROJECT).rows


def test_delete_removes_leftovers_of_kubernetes_and_the_buckets_objects(google, user):
    lab = user.create()
    leave_behind(google)
    options = {"api_endpoint": google.url}
    bucket = Client(PROJECT, AnonymousCredentials(), client_options=options).bucket(lab.bucket[5:])
    for index in range(3):
        bucket.blob(f"models/{index}").upload_from_string("weights")
    assert lab.upload(__file__, to="code/main.py") == f"{lab.bucket}/code/main.py"
    assert bucket.blob("code/main.py").download_as_bytes() == Path(__file__).read_bytes()
    costs = {item.name: item.costs for item in GkeCluster.find_resources(GcpSession(PROJECT), NAME)}
    service = ("a" + "0123456789abcdef" * 2)[:32]
    for name in (f"forwarding rule {service}", "disk pvc-1", "file system pvc-2"):
        assert costs[name], "it costs"
    assert "disk pvc-not-the-kits" not in costs
    user.delete()
    assert [resource.rpartition("/")[2] for resource in google.left()] == ["pvc-not-the-kits"]


def leave_behind(google):
    """Create what Kubernetes would leave: a load balancer's parts, a disk, a file system."""
    session, service = GcpSession(PROJECT, ZONE), ("a" + "0123456789abcdef" * 2)[:32]
    network, labels = f"projects/{PROJECT}/global/networks/trainyard-lab", {"trainyard-kit": "true"}
    region, zone = "regions/us-central1", f"zones/{ZONE}"
    labels["trainyard-cluster"] = NAME
    target = f"projects/{PROJECT}/regions/us-central1/targetPools/{service}"
    for collection, body, where in (
        ("firewalls", {"name": f"k8s-fw-{service}", "network": network}, "global"),
        ("targetPools", {"name": service}, region),
        ("forwardingRules", {"name": service, "target": target}, region),
        ("disks", {"name": "pvc-1", "sizeGb": "10", "labels": labels}, zone),
        ("disks", {"name": "pvc-not-the-kits", "sizeGb": "10"}, zone),
    ):
        session.request("POST", "compute", f"projects/{PROJECT}/{where}/{collection}", body)
    share = {"tier": "BASIC_HDD", "fileShares": [{"name": "vol1", "capacityGb": "1024"}], "labels": labels}
    session.request("POST", "file", f"{PLACE}/instances", share, instanceId="pvc-2")
    google.clock.sleep(300)


def test_two_people_at_once_create_one_cluster(google, user):
    errors = []

    def work():
        try:
            GkeCluster.create(NAME, Shape(2, options=OPTIONS))
        except KitError as error:
            errors.append(error)

    people = [threading.Thread(target=work) for _ in range(2)]
    for thread in people:
        thread.start()
    for person in people:
        person.join(120)
    assert not errors
    assert len([resource for resource in clusters_left(google) if resource.endswith(f"clusters/{NAME}")]) == 1
    assert {pool.status.name for pool in described().node_pools} == {"RUNNING"}
    user.delete()
    assert google.left() == []


def test_flex_start_requests_machines_until_the_expiry_or_seven_days(user):
    lab = user.create(accelerator="nvidia-l4", flex_start=True, hours=10, confirm=True)
    pool = training()
    assert pool.config.flex_start and not pool.config.spot and pool.initial_node_count == 0
    assert 9 * 3600 < pool.config.max_run_duration.seconds <= 10 * 3600
    assert pool.config.reservation_affinity.consume_reservation_type.name == "NO_RESERVATION"
    assert not pool.management.auto_repair
    assert pool.autoscaling.min_node_count == 0 and pool.autoscaling.location_policy.name == "ANY"
    assert lab.pod_additions(gpus=1) == {"nodeSelector": {"cloud.google.com/gke-flex-start": "true"}}
    assert "nodeSelector" not in lab.pod_additions()
    with pytest.raises(BadInput, match="with other machines.*flex_start=True"):
        user.create(accelerator="nvidia-l4", flex_start=False)
    user.create(accelerator="nvidia-l4", flex_start=True, hours=300, name="long", confirm=True)
    assert training("long").config.max_run_duration.days == 7
