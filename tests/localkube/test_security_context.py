"""The user and capabilities of a container, by the rules of the kubelet and containerd."""

import pytest

from localkube.kubelet.containers import security_context
from localkube.kubelet.containers.expansion import ConfigError
from localkube.runtime.container_spec import UserSpec
from localkube.runtime.syscalls import CAPABILITIES, DEFAULT_CAPABILITIES

FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnot an entry\nweb:x:101:102:web:/home/web:/bin/sh\n"
    "far:x:70000:102::/:/bin/sh\n",
    "/etc/group": "root:x:0:\nweb:x:102:\nextra:x:500:other,web\nweber:x:501:weber\n",
}


def find(image_user="", of_container=None, **of_pod):
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"securityContext": of_pod}}
    container = {"name": "c", "securityContext": of_container or {}}
    return security_context.user(pod, container, image_user=image_user, read=FILES.get)


@pytest.mark.parametrize(
    ("image_user", "of_container", "of_pod", "user"),
    [
        ("", {}, {}, UserSpec(0, 0, (0,))),
        ("web", {}, {}, UserSpec(101, 102, (102, 500))),
        ("101", {}, {}, UserSpec(101, 102, (102, 500))),
        ("101:7", {}, {}, UserSpec(101, 7, (7, 500))),
        ("web:extra", {}, {}, UserSpec(101, 500, (500,))),
        ("4711", {}, {}, UserSpec(4711, 0, (0,))),
        ("web", {"runAsUser": 3}, {"runAsUser": 4}, UserSpec(3, 0, (0,))),
        ("web", {}, {"runAsUser": 101, "runAsGroup": 9}, UserSpec(101, 9, (9, 500))),
        ("web", {"runAsGroup": 9}, {}, UserSpec(101, 9, (9, 500))),
        ("web", {}, {"fsGroup": 77, "supplementalGroups": [5, 77]}, UserSpec(101, 102, (5, 77, 102, 500))),
        ("web", {}, {"supplementalGroupsPolicy": "Strict"}, UserSpec(101, 102, (102,))),
    ],
)  # fmt: skip
def test_the_security_context_comes_before_the_image(image_user, of_container, of_pod, user):
    assert find(image_user, of_container, **of_pod) == user


@pytest.mark.parametrize(
    ("image_user", "of_container", "refused"),
    [
        ("", {}, "image will run as root"),
        ("0:5", {}, "image will run as root"),
        ("web", {}, "non-numeric user (web)"),
        ("5", {"runAsUser": 0}, "breaks non-root policy"),
    ],
)
def test_root_is_refused_where_the_pod_asks_for_another_user(image_user, of_container, refused):
    with pytest.raises(ConfigError, match=refused.replace("(", r"\(").replace(")", r"\)")) as caught:
        find(image_user, of_container, runAsNonRoot=True)
    assert caught.value.reason == "CreateContainerConfigError"
    assert find("5", {"runAsUser": 6}, runAsNonRoot=True).uid == 6


@pytest.mark.parametrize(
    ("size", "image_user", "of_pod"),
    [
        (65536, "65536", {}),
        (65536, "0:65536", {}),
        (65536, "far", {}),
        (65536, "", {"runAsUser": 65536}),
        (65536, "", {"runAsGroup": 65536}),
        (65536, "", {"fsGroup": 65536}),
        (65536, "", {"supplementalGroups": [1, 65536]}),
        # As those of CVE-2024-40635, which became root.
        (1, "4294967295", {}),
        (1, "4294967296", {}),
    ],
)
def test_ids_outside_of_the_pods_user_namespace_are_refused(size, image_user, of_pod):
    ids = find(image_user, **of_pod)
    with pytest.raises(ConfigError, match="not one of the"):
        security_context.refuse_foreign_ids((ids.uid, *ids.additional_gids), size=size)


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "-1", "+1", "1_0", " 1"])
def test_a_user_name_in_an_image_is_no_id(number):
    with pytest.raises(ConfigError, match="unable to find user"):
        find(number)
    passwd = {"/etc/passwd": f"odd:x:{number}:{number}::/:/bin/sh\n"}
    assert security_context.home_directory(1, passwd.get) == "/"


def test_home_is_that_of_the_image():
    assert security_context.home_directory(101, FILES.get) == "/home/web"
    assert security_context.home_directory(4711, FILES.get) == "/"


@pytest.mark.parametrize("image_user", ["nobody-knows", "web:nobody-knows"])
def test_names_that_the_image_lacks_are_refused(image_user):
    with pytest.raises(ConfigError, match="no matching entries") as caught:
        find(image_user)
    assert caught.value.reason == "CreateContainerError"


@pytest.mark.parametrize(
    ("context", "capabilities"),
    [
        ({}, set(DEFAULT_CAPABILITIES)),
        ({"capabilities": {"drop": ["ALL"]}}, set()),
        ({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}, {"CAP_NET_BIND_SERVICE"}),
        ({"capabilities": {"drop": ["chown"]}}, set(DEFAULT_CAPABILITIES) - {"CAP_CHOWN"}),
        ({"capabilities": {"add": ["SYS_TIME"]}}, {*DEFAULT_CAPABILITIES, "CAP_SYS_TIME"}),
        ({"capabilities": {"add": ["ALL"], "drop": ["MKNOD"]}}, set(CAPABILITIES) - {"CAP_MKNOD"}),
        ({"privileged": True}, set(CAPABILITIES)),
    ],
)
def test_capabilities_are_added_to_and_dropped_from_the_default(context, capabilities):
    assert set(security_context.capabilities({"securityContext": context})) == capabilities


def test_programs_of_the_image_may_give_privileges_unless_that_is_refused():
    assert not security_context.no_new_privileges({})
    assert security_context.no_new_privileges({"securityContext": {"allowPrivilegeEscalation": False}})


@pytest.mark.parametrize(
    ("of_pod", "of_container", "words"),
    [
        ({"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}, {}, "seccomp/x.json"),
        ({}, {"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}, "profile not found x"),
    ],
)
def test_a_profile_that_a_node_would_have_is_refused_in_the_runtime_s_words(of_pod, of_container, words):
    with pytest.raises(ConfigError, match=words):
        security_context.refuse_profiles(
            {"spec": {"securityContext": of_pod}}, {"securityContext": of_container}
        )
