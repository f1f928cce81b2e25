"""Containers of images that are pulled from a registry: their files, their users, and what goes wrong."""

import base64
import json
import os
import shutil
from pathlib import Path

import pytest

from ..unit.image_registry import serve
from ..unit.oci_images import entry, folder, image, layer, link
from .clusters import Pods, container, list_registry, pod, running_cluster, state, state_home
from .unprivileged import SUBORDINATE, enter_as_nobody, nobodys, with_subordinate_ids

BUSYBOX = Path("/bin/busybox")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:web:/home/web:/bin/sh\n"
GROUP = b"root:x:0:\nweb:x:102:\nextra:x:500:web\n"
SLEEP = {"command": ["sleep", "1000"]}

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(not BUSYBOX.is_file(), reason="needs Debian's package busybox-static"),
]


def base() -> bytes:
    """A small system: BusyBox, two users, a folder of the user ``web``."""
    words = (
        "sh",
        "cat",
        "id",
        "ls",
        "sleep",
        "touch",
        "echo",
        "stat",
        "chown",
        "trap",
        "test",
        "mkdir",
        "grep",
    )
    return layer(
        folder("bin"),
        folder("etc"),
        folder("tmp", mode=0o1777),
        folder("home/web", uid=101, gid=102),
        entry("etc/passwd", PASSWD),
        entry("etc/group", GROUP),
        entry("bin/busybox", BUSYBOX.read_bytes(), mode=0o755),
        *(link(f"bin/{word}", "busybox") for word in words),
    )


@pytest.fixture(scope="module")
def registry(cluster):
    with serve() as running:
        list_registry(cluster.home, running.address)
        running.add("system:1", image(base(), config={"Env": ["PATH=/bin", "FROM=image"], "Cmd": ["id"]}))
        upper = layer(entry("home/web/note", b"upper\n", uid=101, gid=102), entry("etc/.wh.group", b""))
        config = {"User": "web", "WorkingDir": "/home/web", "StopSignal": "SIGUSR1", "Env": ["PATH=/bin"]}
        running.add("web:1", image(base(), upper, config=config))
        yield running


def of(registry, name: str, **fields):
    return {"image": f"{registry.address}/{name}"} | fields


def test_a_container_runs_what_its_image_says(pods, registry):
    assert "uid=0(root) gid=0(root)" in pods.output(pod(main=of(registry, "system:1")))
    show = {"command": ["sh", "-c", "pwd; id; cat note; echo $HOME; test -e /etc/group || echo no group"]}
    output = pods.output(pod(main=of(registry, "web:1") | show)).splitlines()
    assert output[0] == "/home/web" and output[1].startswith("uid=101(web) gid=102 ")
    assert output[2:] == ["upper", "/home/web", "no group"]


def test_its_status_and_events_are_a_kubelets(pods, registry):
    created = pods.running(pod(main=of(registry, "system:1", imagePullPolicy="Always", **SLEEP)))
    name = created["metadata"]["name"]
    assert container(created)["imageID"].startswith(f"{registry.address}/system@sha256:")
    pods.wait_for_event(name, "Pulling", f'Pulling image "{registry.address}/system:1"')
    pods.wait_for_event(name, "Pulled", "Successfully pulled image")
    again = pods.running(pod(main=of(registry, "system:1", **SLEEP)))["metadata"]["name"]
    pods.wait_for_event(again, "Pulled", "already present on machine")


def test_a_pulled_image_has_an_own_root_without_the_hosts_files(pods, registry):
    write = {"command": ["sh", "-c", "echo mine > /etc/passwd; touch /new; ls /; cat /etc/passwd"]}
    output = pods.output(pod(main=of(registry, "system:1") | write)).splitlines()
    assert "new" in output and output[-1] == "mine"
    assert not {"usr", "root", "boot", "srv"} & set(output)
    look = {"command": ["sh", "-c", "ls /; cat /etc/passwd"]}
    assert "new" not in (second := pods.output(pod(main=of(registry, "system:1") | look)))
    assert "web" in second


def test_a_root_file_system_can_be_read_only(pods, registry):
    main = of(
        registry,
        "system:1",
        command=["sh", "-c", "touch /x 2>/dev/null || echo refused; touch /dev/shm/y && echo yes"],
    )
    main["securityContext"] = {"readOnlyRootFilesystem": True}
    assert pods.output(pod(main=main)).splitlines()[-2:] == ["refused", "yes"]


@pytest.mark.parametrize(
    ("context", "user"),
    [
        ({"runAsUser": 1000, "runAsGroup": 3000}, "uid=1000 gid=3000"),
        ({"runAsUser": 101}, "uid=101(web) gid=102(web)"),
    ],
)
def test_the_security_context_chooses_the_user(pods, registry, context, user):
    assert user in pods.output(pod(main=of(registry, "system:1", securityContext=context)))


def test_any_user_may_leave_a_message(pods, registry):
    main = of(
        registry, "system:1", command=["sh", "-c", "echo left > /dev/why"], terminationMessagePath="/dev/why"
    )
    created = pods.finish(pod(main=main | {"securityContext": {"runAsUser": 1000}}))
    assert state(created)["terminated"]["message"] == "left\n"


def test_groups_come_from_the_pod_and_from_the_image(pods, registry):
    context = {"runAsUser": 101, "fsGroup": 777, "supplementalGroups": [888]}
    show = of(
        registry,
        "system:1",
        command=["sh", "-c", "id -G 2>/dev/null || id; stat -c '%u %g %a' /data /data/f"],
    )
    show["command"] = ["sh", "-c", "touch /data/f; id; stat -c '%u %g %a' /data /data/f"]
    volumes = {"volumes": [{"name": "data", "emptyDir": {}}]}
    show["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    output = pods.output(pod(main=show, securityContext=context, **volumes)).splitlines()
    assert output[0] == "uid=101(web) gid=102(web) groups=102(web),500(extra),777,888"
    assert output[1:] == ["0 777 2777", "101 777 644"]


def test_the_image_s_signal_ends_it(pods, registry):
    script = "trap 'echo usr1; exit 0' USR1; echo ready; while true; do sleep 1; done"
    created = pods.running(
        pod(main=of(registry, "web:1", command=["sh", "-c", script]), terminationGracePeriodSeconds=60)
    )
    name = created["metadata"]["name"]
    pods.cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
    pods.cluster.core.delete_namespaced_pod(name, "default")
    ended = pods.until(name, lambda item: state(item).get("terminated"))
    assert state(ended)["terminated"]["exitCode"] == 0


def test_an_image_is_a_volume(pods, registry):
    show = of(
        registry,
        "system:1",
        command=["sh", "-c", "cat /one /all/home/web/note; touch /all/x 2>&- || echo fixed"],
    )
    show["volumeMounts"] = [
        {"name": "i", "mountPath": "/all"},
        {"name": "i", "mountPath": "/one", "subPath": "etc/passwd"},
    ]
    volume = {"name": "i", "image": {"reference": f"{registry.address}/web:1"}}
    output = pods.output(pod(main=show, volumes=[volume])).splitlines()
    assert output[-2:] == ["upper", "fixed"] and output[0].startswith("root:")


def test_a_private_image_needs_the_pod_s_secret(cluster, pods, registry):
    auth = base64.b64encode(b"ada:secret").decode()
    config = json.dumps({"auths": {registry.address: {"auth": auth}}})
    cluster.kubectl(
        "apply",
        "-f",
        "-",
        stdin={
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "pull"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config},
        },
    )
    registry.add("private:1", image(base(), config={"Cmd": ["/bin/id"]}))
    registry.credentials = "ada:secret"
    try:
        refused = pods.create(pod(main=of(registry, "private:1")))
        pods.until(refused, lambda item: state(item).get("waiting", {}).get("reason") == "ErrImagePull")
        secrets = [{"name": "pull"}]
        assert "uid=0" in pods.output(pod(main=of(registry, "private:1"), imagePullSecrets=secrets))
    finally:
        registry.credentials = ""


def test_an_image_that_cannot_be_had_backs_off_in_the_kubelet_s_words(pods, registry):
    name = pods.create(pod(main=of(registry, "nothing:1")))
    item = pods.until(name, lambda item: state(item).get("waiting", {}).get("reason") == "ErrImagePull")
    assert "not found" in state(item)["waiting"]["message"]
    pods.until(name, lambda item: state(item).get("waiting", {}).get("reason") == "ImagePullBackOff")
    pods.wait_for_event(name, "BackOff", "Back-off pulling image")
    never = pods.create(pod(main=of(registry, "nothing:1", imagePullPolicy="Never")))
    pods.until(never, lambda item: state(item).get("waiting", {}).get("reason") == "ErrImageNeverPull")
    reference_pod = pods.create(pod(main=of(registry, "pytorch/pytorch:not-there", **SLEEP)))
    pods.until(reference_pod, lambda item: state(item).get("waiting", {}).get("reason") == "ErrImagePull")
    bad = pods.create(pod(main={"image": "Not/A:Name:x"}))
    pods.until(bad, lambda item: state(item).get("waiting", {}).get("reason") == "InvalidImageName")


def test_where_no_registry_answers_the_host_s_files_stand_in(cluster, pods):
    list_registry(cluster.home, "127.0.0.1:1")
    created = pods.running(pod(main={"image": "127.0.0.1:1/nobody/answers", **SLEEP}))
    event = pods.wait_for_event(created["metadata"]["name"], "Pulled", "is not pulled")
    assert "stands in for it" in event["message"]
    strict = {"trainyard/images": "pull"}
    name = pods.create(pod(main={"image": "127.0.0.1:1/nobody/answers", **SLEEP}, annotations=strict))
    pods.until(name, lambda item: state(item).get("waiting", {}).get("reason") == "ErrImagePull")


@pytest.mark.parametrize("name", ["me/pytorch-cpu:v1", "team/trainyard/trainer:2", "pytorch/pytorch:mine"])
def test_an_image_of_ones_own_is_not_replaced_whatever_its_name(name, pods, registry):
    registry.add(name, image(base(), config={"Env": ["PATH=/bin"], "Cmd": ["echo", name]}))
    assert pods.output(pod(main=of(registry, name))).strip() == name


def test_an_image_in_use_is_not_pruned(cluster, pods, registry):
    registry.add("used:1", image(base(), layer(entry("used", b"yes\n")), config={"Env": ["PATH=/bin"]}))
    created = pods.running(pod(main=of(registry, "used:1", **SLEEP)))
    cluster_images = cluster.home / "trainyard" / "images"
    users = [path.readlink() for path in (cluster_images / "users").iterdir()]
    assert any(created["metadata"]["uid"] in user.parts for user in users)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="root makes the cluster of another user")
def test_a_user_with_one_id_runs_images_as_the_users_that_they_name(registry):
    with state_home(Path("/tmp")) as home:
        list_registry(home, registry.address)
        os.chown(home, 65534, 65534)
        enter = enter_as_nobody(home)
        with running_cluster(home=home, enter=enter, **nobodys(home)) as cluster, Pods(cluster) as pods:
            output = pods.output(pod(main=of(registry, "web:1", command=["sh", "-c", "id; cat note"])))
            assert output.startswith("uid=101(web) gid=102") and output.endswith("upper\n")
            user = {"securityContext": {"runAsUser": 1000, "runAsGroup": 3000}}
            assert "uid=1000 gid=3000" in pods.output(pod(main=of(registry, "system:1") | user))


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="root makes the cluster of another user")
@pytest.mark.skipif(
    shutil.which("newuidmap") is None or not all(path.exists() for path in SUBORDINATE),
    reason="needs newuidmap, of Debian's package uidmap",
)
def test_a_user_with_subordinate_ids_has_all_users_of_an_image(registry):
    with state_home(Path("/tmp")) as home:
        list_registry(home, registry.address)
        os.chown(home, 65534, 65534)
        enter = with_subordinate_ids(home, enter_as_nobody(home))
        with running_cluster(home=home, enter=enter, **nobodys(home)) as cluster, Pods(cluster) as pods:
            script = (
                "cat /proc/self/uid_map; touch /tmp/x; chown 101:102 /tmp/x; stat -c %u:%g /tmp/x /home/web"
            )
            output = pods.output(pod(main=of(registry, "system:1", command=["sh", "-c", script]))).split()
            assert output == ["0", "0", "1", "1", "1", "65535", "101:102", "101:102"]
            groups = {"securityContext": {"runAsUser": 101, "fsGroup": 777}}
            assert "777" in pods.output(pod(main=of(registry, "system:1"), **groups))
        assert not (home / "trainyard" / "clusters" / cluster.name).exists()
