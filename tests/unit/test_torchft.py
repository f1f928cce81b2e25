"""Replica groups of torchft: the objects of a run, and how its pods find the Lighthouse."""

from kitlib.k8s import job_kinds, names
from trainyard_kit.torchft import PORT, TorchFT

PROGRAM = "notebooks/scripts/digits_torchft.py"


def built(**options):
    """Return the Lighthouse, the groups' pods and their template."""
    job = TorchFT(PROGRAM, name="digits", **options)
    config_map, service, lighthouse, *pods, template = job.objects
    assert (config_map["kind"], service["kind"]) == ("ConfigMap", "Service")
    assert all(item["metadata"]["labels"][names.RUN] == "digits" for item in job.objects)
    return lighthouse, pods, template


def test_each_pod_is_a_replica_group_of_its_own_that_finds_the_lighthouse():
    lighthouse, pods, _ = built(nodes=2, processes_per_node=2, args={"steps": 600})
    assert (lighthouse["spec"]["hostname"], lighthouse["spec"]["subdomain"]) == (
        "digits-lighthouse",
        "digits",
    )
    assert [pod["metadata"]["name"] for pod in pods] == ["digits-0", "digits-1"]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        variables = {item["name"]: item.get("value") for item in container["env"]}
        assert variables["NUM_REPLICA_GROUPS"] == "2"
        assert variables["TORCHFT_LIGHTHOUSE"] == f"http://digits-lighthouse.digits:{PORT}"
        assert "--nproc-per-node=2" in container["command"]
        assert container["args"] == ["--steps=600"]
        assert pod["spec"]["dnsConfig"]["searches"] == ["digits.default.svc.cluster.local"]


def test_the_number_of_groups_may_go_from_one_to_twice_as_many():
    assert job_kinds.replica_limits(built(nodes=3)[2]) == (3, 1, 6)
    assert job_kinds.replica_limits(built(nodes=3, min_nodes=2, max_nodes=4)[2]) == (3, 2, 4)
