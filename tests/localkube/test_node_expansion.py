"""References in a pod's text, judged by upstream's own cases, and by what a hostile pod writes."""

import base64
import tomllib
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest

from localkube.kubelet.containers import downward_api
from localkube.kubelet.containers.env_file import EnvFile
from localkube.kubelet.containers.environment import container_environment
from localkube.kubelet.containers.expansion import (
    STRING_BYTES,
    ArgumentSpace,
    ConfigError,
    argument_bytes,
    expand,
    expand_words,
    subpath,
)
from localkube.kubelet.pods.container_spec import _expanded
from localkube.kubelet.quantity import parse
from localkube.kubelet.volumes.projected import PodPayload, downward_files
from tests.unit.cpu_seconds import TooSlowError, cpu_seconds

VARIABLES = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}
UPSTREAM = tomllib.loads((Path(__file__).parent / "expansions.toml").read_text(encoding="utf-8"))
MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("text", UPSTREAM, ids=lambda text: quote(text, safe="$()"))
def test_upstreams_own_cases_expand_as_upstream_says(text):
    assert expand(text, VARIABLES) == UPSTREAM[text]


@pytest.mark.parametrize("unit", ["$(", "$$(", "$($", "$()", "$", "$(VAR_EMPTY)", "($)", "$(x$(VAR_A)", "$)"])
def test_a_megabyte_of_references_expands_in_linear_time(unit):
    text = unit * (MEGABYTE // len(unit))
    with cpu_seconds():
        for tail in ("", ")", "$"):
            expand(text + tail, VARIABLES, limit=4 * MEGABYTE)


def pod(container, annotations=None):
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {}}


def environment(container, configmaps=None, **more):
    container = {"name": "main", **container}
    inputs = {"node": {}, "configmaps": configmaps or {}, "secrets": {}, "service_env": {}} | more
    return container, container_environment(container, pod(container), **inputs)


def doubling(levels, first):
    return [
        {"name": "A0", **first},
        *({"name": f"A{n}", "value": f"$(A{n - 1})$(A{n - 1})"} for n in range(1, levels)),
    ]


SMALL = {"app": {"data": {"A0": "x" * 1000}}}
BOMBS = {
    "values": ({"env": doubling(40, {"value": "x"})}, {}),
    "many bytes in few characters": ({"env": doubling(40, {"value": "\U0001f600"})}, {}),
    "a ConfigMap's key": (
        {"env": doubling(40, {"valueFrom": {"configMapKeyRef": {"name": "app", "key": "A0"}}})},
        SMALL,
    ),
    "envFrom": ({"envFrom": [{"configMapRef": {"name": "app"}}], "env": doubling(40, {"value": "x"})}, SMALL),
    "the downward API": (
        {"env": doubling(40, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})},
        {},
    ),
    "a thousand variables of the longest": (
        {
            "env": [
                {"name": "A", "value": "x" * 100_000},
                *({"name": f"B{n}", "value": "$(A)"} for n in range(20_000)),
            ]
        },
        {},
    ),
    "one variable again and again": (
        {"env": [{"name": "A", "value": "x" * 100_000}, *[{"name": "B", "value": "$(A)"}] * 20_000]},
        {},
    ),
    "one ConfigMap again and again": (
        {"envFrom": [{"prefix": f"P{n}_", "configMapRef": {"name": "app"}} for n in range(10_000)]},
        {"app": {"data": {f"K{n}": "x" for n in range(50_000)}}},
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_variables_that_grow_beyond_what_a_process_takes_are_never_built(case):
    container, configmaps = BOMBS[case]
    tracemalloc.start()
    try:
        with cpu_seconds(20), pytest.raises(ConfigError, match="argument list too long") as caught:
            container, declared = environment(container, configmaps)
            _expanded(container, declared)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * MEGABYTE
    assert caught.value.reason == "CreateContainerConfigError"
    assert caught.value.permanent
    assert len(caught.value.message) <= 1024


@pytest.mark.parametrize("part", ["command", "args"])
@pytest.mark.parametrize("words", [["$(A)$(A)"], ["$(A)"] * 100_000])
def test_a_command_that_grows_beyond_what_a_process_takes_is_never_built(part, words):
    with cpu_seconds(), pytest.raises(ConfigError, match=f"{part}: argument list too long"):
        _expanded({part: words}, {"A": "x" * 100_000})


def test_command_and_variables_share_the_kernels_room():
    most = argument_bytes()
    values = {f"A{n}": "x" * 100_000 for n in range(most // 100_000 - 1)}
    _expanded({"command": ["true"]}, values)
    with pytest.raises(ConfigError, match="in all"):
        _expanded({"command": ["$(A0)", "$(A0)"]}, values)


def test_the_longest_string_that_the_kernel_takes_is_passed():
    longest = "x" * (STRING_BYTES - 1)
    assert expand_words([longest], {}, ArgumentSpace(), what="args") == [longest]
    with pytest.raises(ConfigError):
        expand_words([longest + "x"], {}, ArgumentSpace(), what="args")


def test_a_value_that_a_later_one_replaces_needs_no_room():
    configmaps = {"app": {"data": {"A": "x" * MEGABYTE}}}
    container = {"envFrom": [{"configMapRef": {"name": "app"}}], "env": [{"name": "A", "value": "short"}]}
    assert environment(container, configmaps)[1] == {"A": "short"}


def test_a_sub_path_is_no_longer_than_a_path_may_be():
    mount = {"name": "data", "subPathExpr": "$(A)" * 1000}
    with cpu_seconds(), pytest.raises(ConfigError, match="subPathExpr"):
        subpath(mount, {"A": "x" * 100_000})
    with cpu_seconds(), pytest.raises(ConfigError, match="missing value for"):
        subpath({"name": "data", "subPathExpr": "$(no)" * 200_000}, {})


@pytest.mark.parametrize("text", [b"A='" + b"\n" * MEGABYTE + b"'", b"A='x'\n" * 170_000, b"\n" * MEGABYTE])
def test_a_file_of_variables_is_read_once_for_all_its_variables(text):
    variables = [
        {
            "name": f"V{n}",
            "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "f", "key": f"K{n}", "optional": True}},
        }
        for n in range(5000)
    ]
    with cpu_seconds():
        environment({"env": variables}, files={("v", "f"): text})
    assert len(EnvFile(b"A='" + b"\n" * 1000 + b"'").value("A")) == 1000


def test_annotations_in_a_thousand_files_are_one_text():
    body = pod({"name": "main"}, {"note": "\x01é" * 60_000})
    items = [{"path": str(n), "fieldRef": {"fieldPath": "metadata.annotations"}} for n in range(100)]
    contents = PodPayload()
    tracemalloc.start()
    with cpu_seconds():
        volumes = [
            downward_files({"items": items}, body, mode=0o644, allocatable={}, contents=contents)
            for _ in range(260)
        ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(volumes[-1]) == 100
    assert peak < 20 * MEGABYTE
    assert downward_api._quoted("plain [text]") == '"plain [text]"'


@pytest.mark.parametrize("text", ["1e999999999", "9" * MEGABYTE, "1e-999999999", "." * MEGABYTE])
def test_a_quantity_that_no_machine_has_is_refused_at_once(text):
    with cpu_seconds(), pytest.raises(ValueError, match="quantity") as caught:
        parse(text)
    assert len(str(caught.value)) < 300


def test_secrets_of_any_bytes_are_measured_as_the_kernel_gets_them():
    data = base64.b64encode(b"\xff" * 100_000).decode()
    source = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    value = environment(source, secrets={"s": {"data": {"k": data}}})[1]["A"]
    assert expand("$(A)", {"A": value}) == value
    with pytest.raises(ConfigError):
        expand("$(A)$(A)", {"A": value})


def test_the_limit_on_processor_time_ends_what_is_slow():
    with pytest.raises(TooSlowError), cpu_seconds(0.1):
        while True:
            pass
