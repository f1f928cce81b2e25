"""What known images run on a node, by real pods: entry points, and what happens without a program."""

import json
import os
import shutil
from pathlib import Path

import pytest

from localkube.controlplane import programs
from localkube.controlplane.recipes import RECIPES
from localkube.paths import cache_dir

from .clusters import Pods, pod, python, running_cluster, state

ETCD = "quay.io/coreos/etcd:v3.5.9"
LISTEN = ["--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://0.0.0.0:2379"]
# A container without a probe is ready before it listens.
WAIT = """
import json, time, urllib.error, urllib.request
for _ in range(100):
    try:
        urllib.request.urlopen("{url}")
        break
    except urllib.error.URLError:
        time.sleep(0.1)
"""
FETCH = WAIT + 'print(urllib.request.urlopen("{url}").read().decode())'
V2_CLIENT = (
    WAIT
    + """
url = "{url}".replace("version", "v2/keys/ranks/0")
put = urllib.request.Request(url, data=b"value=ready", method="PUT")
done, found = (json.load(urllib.request.urlopen(each)) for each in (put, url))
print(done["action"], found["node"]["value"])
"""
)


def image(name: str, **main) -> dict:
    """Return a pod that runs an image as it is; ``main`` goes to the container."""
    return pod(main={"image": name} | main)


def fetch(pods, url: str) -> str:
    """Return what a pod of its own gets from an address."""
    return pods.output(pod(main=python(FETCH.format(url=url))))


@pytest.mark.skipif(os.environ.get("TRAINYARD_MODE") == "plain", reason="/ is this machine's own there")
@pytest.mark.parametrize(
    ("name", "directory"),
    [("busybox:1.36", "/"), ("docker.io/library/alpine", "/"), ("pytorch/pytorch:2.15.0", "/workspace")],
)
def test_an_image_brings_its_working_directory(pods, name, directory):
    assert pods.output(pod("pwd", main={"image": name})) == f"{directory}\n"


APPLETS = """
set -e
/usr/bin/nc -z -w 2 kubernetes.default 443
/bin/ping -c 1 -W 5 127.0.0.1 >/dev/null
echo ready | nc -l -p 8080 >/dev/null &
until [ "$(echo | nc -w 5 127.0.0.1 8080 2>/dev/null)" = ready ]; do :; done
id -u
"""


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("name", "shell", "user"),
    [("busybox:1.36", "sh", 0), ("busybox:1.36", "sh", 1000), ("alpine", "/bin/ash", 65532)],
)
def test_every_user_of_a_pod_can_wait_with_nc_and_ping(user, name, shell, pods):
    rights = {"runAsUser": user, "runAsGroup": user, "allowPrivilegeEscalation": False}
    rights |= {"capabilities": {"drop": ["ALL"]}}
    main = {"image": name, "command": [shell, "-c", APPLETS], "securityContext": rights}
    assert pods.output(pod(main=main)).strip() == str(user)


def test_an_event_tells_of_a_tag_that_docker_hub_does_not_have(pods, cluster):
    running = pods.running(image("pytorch/pytorch:2.15.0", command=["sleep", "100"]))
    about = f"involvedObject.name={running['metadata']['name']},reason=MissingImage"
    cluster.kubectl("wait", "--for=create", "event", f"--field-selector={about}", "--timeout=120s")


def test_nginx_serves_its_folder_and_logs_requests(pods, cluster):
    cluster.kubectl("create", "configmap", "page", "--from-literal=index.html=hello from a volume")
    volume = {"name": "page", "configMap": {"name": "page"}}
    mount = {"name": "page", "mountPath": "/usr/share/nginx/html"}
    served = pods.running(pod(main={"image": "nginx:1.29", "volumeMounts": [mount]}, volumes=[volume]))
    assert fetch(pods, f"http://{served['status']['podIP']}/") == "hello from a volume\n"
    assert '"GET / HTTP/1.1" 200 19 ' in pods.logs(served)


def test_kubectl_images_run_the_clusters_own(pods):
    command = ["sh", "-c", "kubectl version --client"]
    assert "Client Version: v1.37" in pods.output(pod(main={"image": "bitnami/kubectl", "command": command}))


def test_curl_images_take_arguments(pods):
    served = pods.running(image("nginx"))
    retry = ["--retry", "20", "--retry-connrefused", "--retry-delay", "1"]
    main = {"image": "curlimages/curl", "args": ["-s", *retry, f"http://{served['status']['podIP']}"]}
    assert "Welcome to nginx" in pods.output(pod(main=main))


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_the_cuda_sample_fails_without_a_gpu_as_the_real_one_does(pods):
    finished = pods.finish(image("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"))
    assert state(finished)["terminated"]["exitCode"] == 1
    assert "no CUDA-capable device is detected" in pods.logs(finished)


@pytest.fixture(scope="module")
def etcd_v2():
    """The etcd that still has the API of version 2, in the cache."""
    programs.obtain(["etcd-v2"], report=lambda text: None)


@pytest.mark.parametrize(
    ("name", "main"),
    [
        (ETCD, {"command": ["/usr/local/bin/etcd", "--enable-v2", *LISTEN]}),
        ("k8s.gcr.io/etcd:3.1.11", {"command": ["etcd", *LISTEN]}),
    ],
)
def test_etcd_has_the_api_of_version_2_where_it_is_asked_for(pods, etcd_v2, name, main):
    data = [{"name": "ETCD_DATA_DIR", "value": "/tmp/data"}]
    served = pods.running(image(name, env=data, **main))
    client = V2_CLIENT.format(url=f"http://{served['status']['podIP']}:2379/version")
    assert pods.output(pod(main=python(client))) == "set ready\n"


@pytest.mark.slow
def test_a_container_waits_for_a_program_that_is_missing_and_starts_when_it_is_there(
    etcd_v2, tmp_path_factory, request
):
    built = RECIPES["etcd-v2"].folder
    folder = tmp_path_factory.mktemp("cache")
    (folder / "trainyard").mkdir()
    (folder / "trainyard" / "controlplane").symlink_to(cache_dir() / "controlplane")
    home = Path(request.config.cache.mkdir("images"))
    environment = {"XDG_CACHE_HOME": str(folder)}
    with (
        running_cluster("--nodes", "1", name="images", home=home, env=environment) as cluster,
        Pods(cluster) as pods,
    ):
        name = pods.create(image(ETCD, command=["etcd", "--version"]))
        reasons = {}
        pods.until(name, lambda pod: _note(reasons, state(pod)) and "ImagePullBackOff" in reasons)
        remedy = "etcd-v2 v3.4.13 is not in the cache: run `python -m localkube get-images etcd-v2`"
        assert reasons["ErrImagePull"] == f'failed to pull image "{ETCD}": {remedy}'
        assert reasons["ImagePullBackOff"] == f'Back-off pulling image "{ETCD}": ErrImagePull: {remedy}'
        put_in_place(built, folder / "trainyard" / built.relative_to(cache_dir()))
        pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
        assert "etcd Version: 3.4.13" in pods.logs(name)
        events = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
        messages = {event["message"] for event in events if event["reason"] == "Failed"}
        assert {"Error: ErrImagePull", "Error: ImagePullBackOff"} <= messages


def put_in_place(built: Path, goal: Path) -> None:
    """Have a program in a cache at once, as who builds it does; building it here would take a minute."""
    beside = goal.with_name("coming")
    shutil.copytree(built, beside)
    beside.rename(goal)


def _note(reasons: dict, state: dict) -> bool:
    waiting = state.get("waiting", {})
    if waiting.get("message"):
        reasons[waiting["reason"]] = waiting["message"]
    return True


@pytest.mark.namespaces
def test_a_user_that_a_stand_in_s_program_cannot_run_as_is_named(pods):
    name = pods.running(image("nginx", securityContext={"runAsUser": 101}))["metadata"]["name"]
    assert pods.wait_for_event(name, "UnsupportedFields", "runAsUser has no effect")["type"] == "Warning"


ROOTS = ("busybox", "pytorch/pytorch", "registry.example/me/trainer:1", "nginx")


def test_a_stand_in_that_would_run_as_root_is_refused_where_the_pod_forbids_it(pods):
    refusals = dict.fromkeys(ROOTS, "image will run as root")
    refusals["curlimages/curl"] = "image has non-numeric user (curl_user)"
    context, names = {"runAsNonRoot": True}, {}
    for name, refusal in refusals.items():
        names[pods.create(pod(main={"image": name, "command": ["true"]}, securityContext=context))] = refusal
    for name, refusal in names.items():
        waiting = pods.until(name, lambda pod: state(pod).get("waiting", {}).get("message"))
        assert state(waiting)["waiting"]["reason"] == "CreateContainerConfigError"
        assert f"container has runAsNonRoot and {refusal}" in state(waiting)["waiting"]["message"]


def test_a_stand_in_for_an_image_of_a_numeric_user_starts_where_the_pod_forbids_root(pods):
    pods.running(image("nginxinc/nginx-unprivileged", securityContext={"runAsNonRoot": True}))
