"""Each field of a pod, and each feature of the kubelet, is done or listed in docs/pod-fields.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

REPOSITORY = Path(__file__).parents[2]
LISTED = set(re.findall(r"`([\w.]+)`", (REPOSITORY / "docs" / "pod-fields.md").read_text()))
KUBERNETES = Path.home() / "go" / "pkg" / "mod" / "k8s.io" / "kubernetes@v1.37.2"


def fields(model: str, parents: set[str]) -> Iterator[str]:
    """Walk the fields of one of the API's types, which are made from its OpenAPI document."""
    parents.add(model)
    kind = getattr(client, model)
    for attribute, types in kind.openapi_types.items():
        field = f"{model.removeprefix('V1')}.{kind.attribute_map[attribute]}"
        yield field
        below = [name for name in re.findall(r"V1\w+", types) if hasattr(client, name)]
        if field not in LISTED:
            for name in (name for name in below if name not in parents):
                yield from fields(name, parents)


def test_each_field_of_a_pod_is_known_to_the_kubelet_or_listed():
    source = "".join(path.read_text() for path in (REPOSITORY / "localkube").rglob("*.py"))
    known = set(re.findall(r"""(?<=["'.])\w+""", source))
    paths = list(fields("V1PodSpec", set()))
    assert [field for field in paths if field not in LISTED and field.partition(".")[2] not in known] == []
    assert len(paths) > 250
    assert {name for name in LISTED if name[0].isupper() and "." in name} <= set(paths)


@pytest.mark.skipif(not KUBERNETES.exists(), reason="Kubernetes' source is not in Go's module cache")
def test_each_feature_of_the_kubelet_that_is_on_by_default_is_listed():
    text = (KUBERNETES / "pkg" / "features" / "kube_features.go").read_text()
    table = text.partition("var defaultVersionedKubernetesFeatureGates")[2].partition("\n}\n")[0]
    gates = re.findall(r"\n\t(\w+): \{(.*?)\n\t\},", table, re.DOTALL)
    by_default = {name for name, versions in gates if re.findall(r"Default: (\w+)", versions)[-1] == "true"}
    sources = (KUBERNETES / "pkg" / "kubelet").rglob("*.go")
    used = {name for path in sources for name in re.findall(r"\bfeatures\.(\w+)", path.read_text())}
    assert len(by_default & used) > 30
    assert by_default & used - LISTED == set()
