"""No name that a pod, a manifest or a learner can write leads to another object of the API."""

import ast
import re
from pathlib import Path

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as some

from kitlib.errors import BadInput
from kitlib.k8s import api_path as kit
from localkube import api_path as local
from localkube.errors import ApiError

ROOT = Path(__file__).parents[2]
BUILDERS = {"localkube/api_path.py", "kitlib/k8s/api_path.py"}
# The controller of ElasticJobs runs in a pod, where nothing of the kit is: it has a function of its own.
CONTROLLER = "programs/elastic_job/controller.py"
LITERAL = re.compile(r"(?:^|/)apis?/|^/apis?$|/namespaces/")
TRAVERSALS = [
    "..",
    ".",
    "",
    "../../attendee-bob/secrets/top",
    "../../kube-system/secrets/top",
    "a/../../b",
    "/top",
    "top/",
    "%2e%2e/%2e%2e/b",
    "%2e%2e",
    "..%2fb",
    "a\0b",
    "a?x=1",
    "a#b",
    "a\\..\\b",
    "ａ．．／ｂ",  # noqa: RUF001 - which NFKC makes a path
    "a\nb",
    "x" * 254,
    "x" * 300,
    "x" * 1_000_000,
]
SPECIAL = some.text(some.sampled_from("./%2eE\\\0#?;:@ ab-"), max_size=60)


@pytest.mark.parametrize("name", TRAVERSALS, ids=lambda name: repr(name[:20]))
def test_a_name_that_no_object_has_is_refused_where_the_kubelet_builds_a_path(name):
    for resource in ("v1/secrets", "v1/configmaps", "v1/persistentvolumeclaims"):
        with pytest.raises(ApiError, match="invalid resource name") as refused:
            local.api_path(resource, namespace="mine", name=name)
        assert len(refused.value.message) < 400
    with pytest.raises(ApiError, match="invalid resource name"):
        local.api_path("v1/secrets", namespace=name, name="top")


@pytest.mark.parametrize("name", [name for name in TRAVERSALS if not set("?#\\ａ") & set(name)])  # noqa: RUF001
def test_a_name_that_no_object_has_is_refused_where_a_notebook_builds_a_path(name):
    with pytest.raises(BadInput, match="cannot have this name"):
        kit.api_path("v1", "secrets", namespace="mine", name=name)
    with pytest.raises(BadInput):
        kit.api_path(f"v1/{name}")


@given(name=some.text(max_size=60) | SPECIAL)
def test_a_path_has_the_segments_of_its_parts_for_whatever_is_named(name):
    prefix = "/api/v1/namespaces/mine/secrets/"
    for build, error in (
        (lambda: local.api_path("v1/secrets", namespace="mine", name=name), ApiError),
        (lambda: kit.api_path("v1", "secrets", namespace="mine", name=name), BadInput),
    ):
        try:
            path = build()
        except error:
            continue
        url = yarl.URL("https://localhost" + path)  # aiohttp's, which resolves dots and decodes
        assert url.path == prefix + name
        assert url.parts == ("/", "api", "v1", "namespaces", "mine", "secrets", name)
        assert not url.query_string


def test_names_of_all_kinds_that_the_cluster_has_are_taken():
    assert local.api_path("v1/nodes", name="node-0.lab") == "/api/v1/nodes/node-0.lab"
    role = "rbac.authorization.k8s.io/v1/clusterroles"
    assert local.api_path(role, name="system:node").endswith("/clusterroles/system%3Anode")
    assert kit.api_path("rbac.authorization.k8s.io/v1", "clusterroles", name="a:b").endswith("/a:b")
    assert kit.api_path("v1", "pods", namespace="lab") == "/api/v1/namespaces/lab/pods"


@pytest.mark.parametrize("package", ["kitlib", "localkube", "trainyard_kit", "programs"])
def test_no_module_but_one_writes_a_path_of_the_api(package):
    offenders = []
    for path in sorted((ROOT / package).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if place in BUILDERS or not re.search("apis?/|/apis?|/namespaces/", text):
            continue
        tree = ast.parse(text)
        allowed = {
            id(part)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and place == CONTROLLER and function.name == "api_path"
            for part in ast.walk(function)
        }
        offenders += [
            f"{place}:{node.lineno}: {node.value[:60]}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed
            if LITERAL.search(node.value) and " " not in node.value and not node.value.endswith(".go")
        ]
    assert offenders == []
