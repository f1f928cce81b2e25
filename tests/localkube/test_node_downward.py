"""The downward API's text."""

import pytest

from localkube.kubelet.containers.downward_api import field, find_container, resource_field
from localkube.kubelet.containers.expansion import ConfigError

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": 'x"y\\'}},
    "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]},
}


def test_all_labels_are_sorted_lines_with_quoted_values():
    assert field(POD, "metadata.labels") == 'a="x\\"y\\\\"\nb="2"'
    assert field(POD, "metadata.annotations") == ""


def test_characters_that_do_not_print_are_written_as_go_does():
    pod = {"metadata": {"labels": {"k": "\t\x01\x7f\u00a0é🚂"}}}
    assert field(pod, "metadata.labels") == 'k="\\t\\x01\\x7f\\u00a0é🚂"'


def test_an_address_that_is_not_known_yet_is_empty():
    assert field(POD, "status.podIP") == ""
    assert field(POD, "status.podIPs", pod_ips=["10.0.0.1", "fd00::1"]) == "10.0.0.1,fd00::1"


@pytest.mark.parametrize(
    "path", ["metadata.creationTimestamp", "spec.hostname", "status.phase", "metadata", "spec['a']"]
)
def test_other_fields_are_refused(path):
    with pytest.raises(ConfigError, match="unsupported fieldPath"):
        field(POD, path)


def test_other_resources_are_refused():
    with pytest.raises(ConfigError, match="unsupported container resource"):
        resource_field({}, "limits.nvidia.com/gpu", None, {})


def test_a_limit_that_is_not_set_is_what_the_node_offers():
    assert resource_field({}, "limits.memory", "1Gi", {"memory": "2049Mi"}) == "3"
    assert resource_field({}, "limits.ephemeral-storage", None, {}) == "0"


def test_containers_are_found_by_name_among_both_kinds():
    assert find_container(POD, "first")["name"] == "first"
    with pytest.raises(ConfigError, match="container second not found"):
        find_container(POD, "second")
