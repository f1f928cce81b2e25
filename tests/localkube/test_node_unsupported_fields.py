"""What a pod asks for in vain is named."""

from localkube.kubelet.status.unsupported_fields import unsupported_fields, unsupported_fields_in_plain_mode


def pod(*containers, **spec):
    return {"spec": {"containers": [{"name": "main"}, *containers]} | spec}


def test_an_ordinary_pod_has_no_unsupported_fields():
    usual = {"securityContext": {"allowPrivilegeEscalation": False, "privileged": False}, "ports": [{}]}
    ordinary = pod({"name": "other"} | usual, dnsPolicy="ClusterFirst", securityContext={})
    assert unsupported_fields(ordinary) == []
    assert unsupported_fields(pod(resources={"requests": {"cpu": "1"}})) == []
    (sentence,) = unsupported_fields(pod(resources={"limits": {"memory": "1Gi"}}))
    assert sentence.startswith("resources.limits is not supported: ")


def test_fields_that_are_lost_for_one_reason_share_a_sentence():
    user = {"securityContext": {"runAsUser": 0}}
    manifest = pod({"name": "other"} | user, securityContext={"runAsUser": 0, "fsGroup": 0}, hostUsers=True)
    assert unsupported_fields(manifest) == [
        "hostUsers is not supported: the pod has a user namespace of its own"
    ]
    lost = "securityContext.runAsUser, securityContext.fsGroup, securityContext.runAsUser of container other"
    assert (
        f"{lost} are not supported: in plain mode every process is the cluster's user"
        in unsupported_fields_in_plain_mode(manifest)
    )


def test_plain_mode_keeps_less():
    memory = pod(volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}])
    assert unsupported_fields(memory) == []
    assert "volumes is not supported" in unsupported_fields_in_plain_mode(memory)[0]
