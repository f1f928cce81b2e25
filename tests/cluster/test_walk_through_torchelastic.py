"""The steps of the walk-through torchelastic-eks by kubectl alone: etcd, two workers whose program is in S3,
a third that joins them, one that is deleted.

The trainer is that of the digits, since what is trained is not the lesson. The S3 server is moto's, in a pod.
"""

import json
from pathlib import Path

import pytest

from .ranks import until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "torch-elastic-eks"
CARRIED = (
    "trainers/fetch_trainer",
    *(f"trainers/{name}" for name in ("checkpoints", "elastic", "elastic_state", "elastic_watch")),
    *(f"trainers/{name}" for name in ("elastic_launch", "elastic_rendezvous")),
)
STORAGE = """
apiVersion: v1
kind: Service
metadata: {name: s3}
spec: {selector: {app: s3}, ports: [{port: 5000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: s3, labels: {app: s3}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: s3
      image: python
      command: [python, -m, moto.server, -H, 0.0.0.0, -p, "5000"]
      readinessProbe: {tcpSocket: {port: 5000}, periodSeconds: 1}
      volumeMounts: [{name: code, mountPath: /code}]
  volumes: [{name: code, configMap: {name: code}}]
---
apiVersion: v1
kind: Secret
metadata: {name: imagenet}
stringData: {AWS_ENDPOINT_URL: "http://s3:5000", AWS_ACCESS_KEY_ID: key, AWS_SECRET_ACCESS_KEY: secret}
"""
UPLOAD = """
import boto3
client = boto3.client("s3", endpoint_url="http://localhost:5000", region_name="us-east-1",
                      aws_access_key_id="key", aws_secret_access_key="secret")
client.create_bucket(Bucket="bucket")
client.upload_file("/code/digits_elastic.py", "bucket", "imagenet/main.py")
"""

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def workers(local_cluster, tmp_path):
    """The manifest of the workers as it is applied, for digits; all is deleted afterwards."""
    kubectl = local_cluster.kubectl
    volume = local_cluster.create_volume("shared")
    storage = tmp_path / "storage.yaml"
    storage.write_text(STORAGE)
    text = (FOLDER / "workers.yaml").read_text().replace("<BUCKET>", "bucket")
    for given in ("--data-dir=/data/tiny-imagenet", "--epochs=10"):
        assert f"        - {given}\n" in text
    text = text.replace("--data-dir=/data/tiny-imagenet", "--log-every=1")
    text = text.replace("--epochs=10", "--epochs=40\n        - --step-seconds=0.2")
    path = tmp_path / "workers.yaml"
    path.write_text(text)
    yield path
    kubectl(f"delete --ignore-not-found --wait=false -f {path} -f {FOLDER / 'etcd.yaml'} -f {storage}")
    kubectl("delete pod,service -l job=imagenet --ignore-not-found")
    kubectl("delete configmap imagenet code --ignore-not-found")
    kubectl("wait pod --for=delete -l job=imagenet --timeout=120s")
    volume.delete()


def test_workers_by_kubectl_meet_at_an_etcd_and_train_on_as_one_joins_and_one_leaves(
    workers, local_cluster, tmp_path
):
    kubectl = local_cluster.kubectl
    carried = " ".join(f"--from-file={ROOT / name}.py" for name in CARRIED)
    kubectl(f"create configmap imagenet {carried}")
    kubectl(f"create configmap code --from-file={ROOT / 'trainers' / 'digits_elastic.py'}")
    kubectl(f"apply -f {tmp_path / 'storage.yaml'} -f {FOLDER / 'etcd.yaml'}")
    kubectl("wait pod/s3 pod/etcd --for=condition=Ready --timeout=120s")
    local_cluster.kube.execute("s3", ["python", "-c", UPLOAD], container="s3")
    kubectl(f"apply -f {workers}")

    def world(worker):
        """Return the newest world size in which a worker has made a step."""
        lines = kubectl(f"logs imagenet-worker-{worker} --tail=20").splitlines()
        steps = [json.loads(line) for line in lines if line.startswith('{"event":"step"')]
        return steps[-1]["world_size"] if steps else 0

    kubectl("wait pod -l job=imagenet --for=condition=Ready --timeout=120s")
    until(lambda: world(2) == 2, "two to train")
    written = kubectl("logs imagenet-worker-1 -c fetch")
    assert written.startswith("s3://bucket/imagenet/main.py: main.py")

    third = tmp_path / "third.yaml"
    *_, service, pod = workers.read_text().split("---\n")
    third.write_text(f"{service}---\n{pod}".replace("imagenet-worker-2", "imagenet-worker-3"))
    kubectl(f"apply -f {third}")
    until(lambda: world(1) == 3, "the third to take part")
    kubectl("delete pod imagenet-worker-1")
    until(lambda: world(2) == 2 == world(3), "the others to train on")
    kubectl("delete pod imagenet-worker-2 imagenet-worker-3")
