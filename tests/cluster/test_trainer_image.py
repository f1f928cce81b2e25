"""The trainer image is remembered on a real cluster, where an attendee reads it and a pod gets it."""

import secrets
from types import SimpleNamespace

import pytest

import kitlib as kit
from kitlib.errors import Rejected

from ..unit.cloud_like import ImageStore

pytestmark = pytest.mark.cluster
WHERE = "kube-public"


@pytest.fixture
def built(local_cluster):
    """The image, built for the cluster; what remembers it is deleted after the test."""
    yield kit.build_image(cluster=SimpleNamespace(registry=ImageStore(), kube=local_cluster.kube))
    for kind in ("ConfigMap", "RoleBinding", "Role"):
        local_cluster.kube.in_namespace(WHERE).delete(kind, "trainyard-trainer-image")


@pytest.mark.slow
def test_an_attendee_reads_the_image_and_their_pods_have_it(local_cluster, built, plain):
    name = f"ada-{secrets.token_hex(2)}"
    attendee = kit.workshop.add(name, cluster=local_cluster, cpu="2", memory="8Gi", pods=3)
    try:
        theirs = kit.connect("existing", kubeconfig=attendee.kubeconfig)
        assert theirs.trainer_image() == built.reference
        run = kit.launch(plain("print('here')", nodes=1, cpu="100m"), cluster=theirs)
        run.wait(timeout=120)
        (pod,) = theirs.kube.get_all("Pod")
        assert [container["image"] for container in pod["spec"]["containers"]] == [built.reference]
        with pytest.raises(Rejected, match="forbidden"):
            theirs.kube.in_namespace(WHERE).get_all("ConfigMap")
        with pytest.raises(Rejected, match="forbidden"):
            theirs.kube.in_namespace(WHERE).delete("ConfigMap", "trainyard-trainer-image")
    finally:
        kit.workshop.remove(name, cluster=local_cluster)
