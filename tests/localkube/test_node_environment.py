"""A container's environment, rule by rule."""

import base64

import pytest

from localkube.kubelet.containers.environment import ConfigError, container_environment, service_environment

NODE = {"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}


def pod(container, **spec):
    return {
        "metadata": {
            "name": "trainer-0",
            "namespace": "course",
            "uid": "u-1",
            "labels": {"app": "trainer", "batch.kubernetes.io/job-completion-index": "3"},
            "annotations": {"note": 'two\n"lines"'},
        },
        "spec": {"nodeName": "node-1", "serviceAccountName": "default", "containers": [container], **spec},
        "status": {"podIP": "10.244.1.7", "podIPs": [{"ip": "10.244.1.7"}], "hostIP": "10.244.254.1"},
    }


def environment(container, **given_):
    container = {"name": "main", **container}
    inputs = {"configmaps": {}, "secrets": {}, "service_env": {}, "node": NODE} | given_
    return container_environment(container, pod(container), **inputs)


def test_env_wins_over_env_from_over_services():
    result = environment(
        {
            "envFrom": [{"configMapRef": {"name": "one"}}, {"prefix": "P_", "secretRef": {"name": "two"}}],
            "env": [{"name": "A", "value": "env"}, {"name": "EMPTY"}],
        },
        configmaps={"one": {"data": {"A": "map", "B": "map", "C": "map", "a.b-c": "dotted"}}},
        secrets={"two": {"data": {"C": base64.b64encode(b"secret").decode()}}},
        service_env={"B": "service", "S": "service"},
    )
    assert result == {
        "A": "env",
        "B": "map",
        "C": "map",
        "P_C": "secret",
        "a.b-c": "dotted",
        "S": "service",
        "EMPTY": "",
    }


def test_addresses_that_are_newer_than_the_status_are_used():
    container = {
        "name": "main",
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    result = environment(container, pod_ips=["10.244.9.9"])
    assert result["IP"] == "10.244.9.9"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "no"}}]}, 'configmap "no" not found'),
        ({"envFrom": [{"secretRef": {"name": "no"}}]}, 'secret "no" not found'),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "have", "key": "no"}}}]},
            "couldn't find key no in ConfigMap course/have",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.hostname"}}}]},
            "unsupported fieldPath: spec.hostname",
        ),
        ({"env": [{"name": "A", "value": "nul\0"}]}, "cannot be passed"),
    ],
)
def test_a_missing_source_is_named_as_by_the_upstream_kubelet(container, message):
    with pytest.raises(ConfigError) as caught:
        environment(container, configmaps={"have": {"data": {}}})
    assert message in caught.value.message
    assert caught.value.reason == "CreateContainerConfigError"


def test_an_optional_source_may_be_missing():
    def optional(kind):
        source = {"name": "have", "key": "no", "optional": True}
        return {"name": kind, "valueFrom": {kind: source}}

    result = environment(
        {
            "envFrom": [{"configMapRef": {"name": "no", "optional": True}}],
            "env": [optional("configMapKeyRef"), optional("secretKeyRef")],
        },
        configmaps={"have": {}},
    )
    assert result == {}


def service(namespace, name, ip, *ports):
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"clusterIP": ip, "ports": list(ports)},
    }


def test_services_are_found_by_variables():
    services = [
        service("default", "kubernetes", "10.96.0.1", {"name": "https", "port": 443, "protocol": "TCP"}),
        service(
            "course",
            "data-store",
            "10.96.0.9",
            {"name": "web", "port": 80},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ),
        service("course", "headless", "None", {"port": 1}),
        service("other", "hidden", "10.96.0.3", {"port": 1}),
    ]
    result = service_environment(pod({"name": "main"}), services)
    assert result["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert result["KUBERNETES_SERVICE_PORT_HTTPS"] == "443"
    assert result["DATA_STORE_SERVICE_PORT"] == "80"
    assert result["DATA_STORE_PORT"] == "tcp://10.96.0.9:80"
    assert result["DATA_STORE_PORT_53_UDP_PROTO"] == "udp"
    assert not [name for name in result if name.startswith(("HIDDEN", "HEADLESS"))]
    many = [
        service("course", f"s{n}", "10.96.0.9", *({"port": port} for port in range(9000))) for n in range(30)
    ]
    with pytest.raises(ConfigError, match="argument list too long"):
        service_environment(pod({"name": "main"}), many)
    keys = {"data": {f"k{number:05}": "" for number in range(40_000)}}
    sources = [{"prefix": f"P{number}_", "configMapRef": {"name": "keys"}} for number in range(40)]
    with pytest.raises(ConfigError, match="at most 65536"):
        environment({"name": "main", "envFrom": sources}, configmaps={"keys": keys})
    alone = service_environment(pod({"name": "main"}, enableServiceLinks=False), services)
    assert {name.partition("_")[0] for name in alone} == {"KUBERNETES"}
