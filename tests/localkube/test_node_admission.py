"""Which pods a node admits, and the kubelet's reasons for those that it does not."""

import pytest

from localkube.kubelet.pods.admission import refusal

NODE = {"metadata": {"name": "node-0", "labels": {"disk": "ssd", "cores": "8"}}}


def pod(*ports, **spec):
    containers = [{"name": "main", "ports": list(ports)}]
    return {"spec": {"nodeName": "node-0", "containers": containers} | spec}


def refused(manifest, *, others=(), shortage=None):
    return refusal(manifest, other_pods=others, node=NODE, shortage=shortage)


def with_sysctl(name, **spec):
    return pod(securityContext={"sysctls": [{"name": name, "value": "1"}]}, **spec)


def required(**expression):
    terms = [{"matchExpressions": [expression]}]
    needs = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod(affinity={"nodeAffinity": needs})


def test_safe_sysctls_are_admitted_except_in_the_nodes_namespaces():
    for name in ("kernel.shm_rmid_forced", "net.ipv4.tcp_rmem", "net/ipv4/tcp_rmem"):
        assert refused(with_sysctl(name)) is None
    for name, spec, why in (
        *((name, {}, "allowlisted") for name in ("kernel.msgmax", "net.core.somaxconn", "vm.swappiness")),
        ("net.ipv4.tcp_rmem", {"hostNetwork": True}, "allowed with host net enabled"),
        ("kernel.shm_rmid_forced", {"hostIPC": True}, "allowed with host ipc enabled"),
    ):
        message = f'forbidden sysctl: "{name}" not {why}'
        assert refused(with_sysctl(name, **spec)) == ("SysctlForbidden", message)


def test_a_pod_of_another_operating_system_or_with_a_profile_of_apparmor_is_refused():
    assert refused(pod(os={"name": "windows"}))[0] == "PodOSNotSupported"
    assert refused(pod(os={"name": "linux"})) is None
    profiles = [{"appArmorProfile": {"type": kind}} for kind in ("RuntimeDefault", "Unconfined")]
    assert [bool(refused(pod(securityContext=profile))) for profile in profiles] == [True, False]


@pytest.mark.parametrize(
    ("first_port", "second_port", "collide"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80, "protocol": "UDP"}, {"hostPort": 80}, False),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80, "hostIP": "127.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80, "hostIP": "0.0.0.0"}, True),
        ({"containerPort": 80}, {"containerPort": 80}, False),
    ],
)
def test_a_port_of_the_node_is_one_pods(first_port, second_port, collide):
    rejection = refused(pod(first_port), others=[pod(second_port)])
    message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    assert rejection == (("NodePorts", message) if collide else None)


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        (pod(nodeSelector={"disk": "ssd"}), True),
        (pod(nodeSelector={"disk": "tape"}), False),
        (required(key="disk", operator="In", values=["ssd", "nvme"]), True),
        (required(key="disk", operator="NotIn", values=["ssd"]), False),
        (required(key="other", operator="NotIn", values=["ssd"]), True),
        (required(key="disk", operator="Exists"), True),
        (required(key="other", operator="DoesNotExist"), True),
        (required(key="cores", operator="Gt", values=["7"]), True),
        (required(key="cores", operator="Lt", values=["8"]), False),
        (required(key="disk", operator="Gt", values=["7"]), False),
        (pod(affinity={"nodeAffinity": {}}), True),
    ],
)
def test_a_pod_that_was_bound_to_another_kind_of_node_is_refused(spec, fits):
    message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    assert refused(spec) == (None if fits else ("NodeAffinity", message))


def exists(**toleration):
    return {"operator": "Exists"} | toleration


@pytest.mark.parametrize(
    ("tolerations", "effect", "admitted"),
    [
        ([], "NoExecute", False),
        ([], "NoSchedule", True),  # which is the scheduler's alone
        ([exists()], "NoExecute", True),
        ([exists(key="lab")], "NoExecute", True),
        ([exists(key="lab", effect="NoSchedule")], "NoExecute", False),
        ([exists(key="other")], "NoExecute", False),
        ([{"key": "lab", "value": "mine"}], "NoExecute", True),
        ([{"key": "lab", "operator": "Equal", "value": "yours"}], "NoExecute", False),
    ],
)
def test_a_pod_that_its_author_bound_is_refused_where_a_taint_would_end_it(tolerations, effect, admitted):
    tainted = NODE | {"spec": {"taints": [{"key": "lab", "value": "mine", "effect": effect}]}}
    message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    result = refusal(pod(tolerations=tolerations), other_pods=(), node=tainted, shortage=None)
    assert result == (None if admitted else ("TaintToleration", message))
