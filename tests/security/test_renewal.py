"""Certificates that expire while a cluster runs: renewed in time, every part of it goes on."""

import datetime
import subprocess
import sys
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from ..node.clusters import Pods, eventually, pod, running_cluster, state_home
from ..node.restrictions import REPOSITORY

# Clients of Kubernetes look for new files every five minutes.
RELOAD_SECONDS, LIFE_SECONDS = 330, 420


@pytest.fixture(scope="module")
def cluster(request):
    with (
        state_home(request.config.cache.mkdir("renewal")) as home,
        running_cluster("--nodes", "1", home=home) as running,
    ):
        yield running


def shorten(pki, file, until):
    """Replace a certificate by the same one that expires earlier."""
    certificate = x509.load_pem_x509_certificate((pki / f"{file}.crt").read_bytes())
    for name in ("ca", "front-proxy-ca"):
        authority = x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())
        if authority.subject == certificate.issuer:
            break
    key = serialization.load_pem_private_key((pki / f"{name}.key").read_bytes(), None)
    builder = (
        x509.CertificateBuilder(extensions=list(certificate.extensions))
        .subject_name(certificate.subject)
        .issuer_name(certificate.issuer)
        .public_key(certificate.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(certificate.not_valid_before_utc)
        .not_valid_after(until)
    )
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (pki / f"{file}.crt").write_bytes(pem)


def leaves(cluster):
    pki = cluster.root / "pki"
    return [path.stem for path in pki.glob("*.crt") if not path.stem.endswith("ca")]


def answers(cluster):
    """Whether the API server is ready, by whoever is in its place by now."""
    try:
        return cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except AssertionError:
        return False


def read_log(cluster, name):
    """Read a log; after a renewal the API server closes its connections, and one request fails."""
    try:
        return cluster.kubectl("logs", name)
    except AssertionError:
        return ""


def works(cluster):
    """Use every part: the API, etcd, the controllers, the scheduler, the kubelet and its server."""
    with Pods(cluster) as pods:
        name = pods.finish(pod("echo works"))["metadata"]["name"]
        eventually(lambda: read_log(cluster, name), expected="works\n")
    cluster.kubectl("create", "job", "used", "--image=busybox", "--", "true")
    cluster.kubectl("wait", "--for=condition=Complete", "job/used", "--timeout=120s")
    cluster.kubectl("delete", "job", "used")
    cluster.kubectl("get", "node", "node-0")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_part_uses_renewed_certificates_before_the_former_ones_expire(cluster):
    pki = cluster.root / "pki"
    expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LIFE_SECONDS + RELOAD_SECONDS)
    for file in leaves(cluster):
        shorten(pki, file, expiry)
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "localkube.kubelet"):
        cluster.process(name).kill()  # those that come in their place begin with what will expire
    eventually(lambda: answers(cluster))
    works(cluster)
    pids = {process.pid for process in cluster.processes()}
    command = [sys.executable, "-m", "localkube.controlplane.renewal", str(cluster.root)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    time.sleep(max(0, expiry.timestamp() - time.time()) + 5)
    works(cluster)
    # By themselves: nothing was started again.
    assert pids <= {process.pid for process in cluster.processes()}
