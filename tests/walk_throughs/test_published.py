"""The published pages' YAML on a local cluster, with its placeholders alone filled in; and the lines printed.

Images are those of the pages: the kit's environment stands in for them, with programs of the same names.
"""

import base64
import re
import shutil
import subprocess

import boto3
import pytest
import yaml
from PIL import Image

import kitlib as kit

from ..programs.small_data import write_cifar10
from .pages import blocks, commands, manifest, printed, shell_in

# What the providers put on the nodes of the pages.
LABELS = {
    "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
    "beta.kubernetes.io/instance-type": "c5.4xlarge",
}
# The site of a page's download: searched for among the cluster's names first (ndots:5), it is a pod's name.
MIRROR = """
apiVersion: v1
kind: Namespace
metadata: {name: edu}
---
apiVersion: v1
kind: Pod
metadata: {name: mirror, namespace: edu, labels: {app: mirror}}
spec:
  hostname: cs231n
  subdomain: stanford
  containers:
    - {name: web, image: nginx, volumeMounts: [{name: files, mountPath: /usr/share/nginx/html}]}
  volumes:
    - {name: files, configMap: {name: files}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files, namespace: edu}
binaryData: {tiny-imagenet-200.zip: %s}
---
apiVersion: v1
kind: Service
metadata: {name: stanford, namespace: edu}
spec: {clusterIP: None, selector: {app: mirror}, ports: [{port: 80}]}
"""
# The page is for a Mac, whose sed wants a suffix of its own.
SED_OF_MACOS = 'sed() { [ "$1$2" != -i ] || { shift 2; set -- -i "$@"; }; command sed "$@"; }\n'
NUMBER = r"-?\d+(?:\.\d+)?"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(state_home):
    # As large as the machines of the pages, whose pods ask for 32 cores.
    with kit.create_cluster(
        "local", name="published", nodes=4, labels=LABELS, cpus=36, memory="72Gi"
    ) as cluster:
        yield cluster


@pytest.fixture
def apply(cluster, tmp_path):
    """Fill in a page's manifest by sed, and apply it; its objects are deleted afterwards."""
    paths = []

    def fill(text, *expressions):
        words = [word for expression in ("", *expressions) for word in ("-e", expression)]
        done = subprocess.run(["sed", *words], input=text, capture_output=True, text=True, check=True)
        paths.append(tmp_path / f"{len(paths)}.yaml")
        paths[-1].write_text(done.stdout)
        return cluster.kubectl(f"apply -f {paths[-1]}")

    yield fill
    for path in reversed(paths):
        cluster.kubectl(f"delete --ignore-not-found -f {path}")


@pytest.fixture
def shell(cluster, tmp_path):
    """Run a page's lines in a shell in an empty folder; return what they write."""
    return shell_in(tmp_path, cluster.name)


def same_shape(log, line):
    """Whether a log has a line that differs from the page's in its numbers alone."""
    words = [re.escape(part) for part in re.split(NUMBER, re.sub(r"\s+", " ", line.strip()))]
    return re.search(NUMBER.join(words), re.sub(r"[ \t]+", " ", log)) is not None


@pytest.mark.slow
@pytest.mark.long
def test_the_indexed_job_of_the_page_trains_on_four_nodes_and_prints_its_lines(cluster, apply):
    page = "gke-indexed-job"
    apply(manifest(page, "pytorchworker"), "s/<PROJECT_ID>/my-project/")
    cluster.kubectl("wait job/pytorchworker --for=condition=Complete --timeout=900s")
    pods = cluster.kubectl("get pods -l job-name=pytorchworker -o jsonpath={.items[*].metadata.name}").split()
    assert sorted(re.sub(r"-\w+$", "", pod) for pod in pods) == [
        f"pytorchworker-{index}" for index in range(4)
    ]
    log = cluster.kubectl(f"logs {sorted(pods)[1]}")
    lines = printed(page, r"^Train Epoch|^Test set|^\d+it |^\+ torchrun|^INFO:torch.*(Done waiting|finished)")
    exact = [line for line in lines if line.startswith("+ torchrun")]
    assert exact[0].strip() in log
    for line in lines[1:]:
        head = re.sub(r"^INFO:[\w.]+:(\[default\] )?", "", line)  # torch has another logger today
        head = head.replace("(SUCCEEDED)", "(WorkerState.SUCCEEDED)")
        assert same_shape(log, head), line
    for start in ("Train Epoch: 1 [64/60000 (0%)]", "[14912/60000 (99%)]", "[5616/60000 (100%)]", "235it "):
        assert start in log
    assert "/10000 (" in log


@pytest.mark.slow
@pytest.mark.long
def test_the_elastic_job_and_the_test_of_the_page_train_and_test_on_its_claim(cluster, apply, tmp_path):
    page = "eks-distributed-training-workshop"
    volume = cluster.create_volume("efs-pvc")
    write_cifar10(tmp_path / "cifar10", train=2 * 5 * 128)  # five steps of each of two workers: a line
    volume.upload(tmp_path / "cifar10" / "cifar-10-batches-py")
    kit.install("elastic-job", cluster=cluster)
    try:
        services = cluster.kubectl("get services,deployments -o name")
        for line in printed(page, "^(service/etcd-service|deployment.apps/etcd) created"):
            assert line.removesuffix(" created") in services
        assert "elasticjob.elastic.pytorch.org/cifar10-train created" in apply(
            manifest(page, "kind: ElasticJob")
        )
        cluster.kubectl("wait elasticjob/cifar10-train --for=condition=Succeeded --timeout=400s")
        logs = [cluster.kubectl(f"logs cifar10-train-worker-{index}") for index in range(2)]
        for log in logs:
            assert "reading /efs-shared/cifar-10-batches-py/\n" in log
            for epoch in (
                1,
                10,
            ):  # the page's rate is that of 50,000 images: of a few the loss may have no bound
                assert re.search(rf"^\[{epoch},     5\] loss: (\d+\.\d{{3}}|nan)$", log, re.MULTILINE)
            assert log.index("saving model: /efs-shared/cifar10-model.pth") < log.index("Finished Training")
        assert "job.batch/cifar10-test created" in apply(manifest(page, "name: cifar10-test"))
        cluster.kubectl("wait job/cifar10-test --for=condition=Complete --timeout=300s")
        log = cluster.kubectl("logs job/cifar10-test")
        for line in printed(page, r"^reading /efs|^loading model|^Accuracy of|^Finished Testing"):
            assert same_shape(log, line), line
    finally:
        cluster.kubectl("delete elasticjob cifar10-train --ignore-not-found --cascade=foreground")
        kit.uninstall("elastic-job", cluster=cluster)


def test_the_priorities_and_the_pod_of_elasticdls_page_work_on_its_claim(local_cluster, tmp_path):
    """Its Deployment and its jobs have a cluster with room for them in test_elasticdl."""
    page = "elasticdl-gke"
    claim, path = local_cluster.create_volume("fileserver-claim"), tmp_path / "page.yaml"
    texts = [manifest(page, "kind: PriorityClass", f"name: {name}") for name in ("high", "low")]
    path.write_text("---\n".join([*texts, manifest(page, "name: my-pod")]))
    try:
        local_cluster.kubectl(f"apply -f {path}")
        local_cluster.kubectl("wait pod/my-pod --for=condition=Ready --timeout=120s")
        (tmp_path / "mnist").mkdir()
        (tmp_path / "mnist" / "train").write_text("records")
        local_cluster.kubectl(f"cp {tmp_path / 'mnist'} my-pod:/data")
        assert local_cluster.kubectl("exec my-pod -- cat /data/mnist/train") == "records"
    finally:
        local_cluster.kubectl(f"delete --ignore-not-found -f {path} --grace-period=1")
        claim.delete()


@pytest.mark.slow
@pytest.mark.long
def test_the_jobs_of_kubeflows_page_train_and_its_commands_work(cluster, shell, tmp_path):
    page = "kubeflow-pytorchjob"
    kit.install("training-operator", cluster=cluster)
    try:
        (line,) = printed(page, "^training-operator-")
        assert same_shape(cluster.kubectl("get pods -n kubeflow"), re.sub(r"-\w+-\w+ .*", "", line))
        fragments = [yaml.safe_load(dedented(block)) for block in blocks(page) if "- name: pytorch" in block]
        for name, fragment in zip(("torchrun-gpu", "torchrun-cpu"), reversed(fragments), strict=True):
            job = yaml.safe_load(kit.config.manifests("pytorch-job", "cpu.yaml").read_text())
            job["metadata"]["name"] = name
            for role in job["spec"]["pytorchReplicaSpecs"].values():
                role["template"]["spec"] = {"containers": fragment["containers"]}
            (tmp_path / "job-manifest.yaml").write_text(yaml.safe_dump(job))
            (create,) = commands(page, "kubectl create")
            shell(f"{create} --dry-run=server" if name == "torchrun-gpu" else create)
        job = "-n kubeflow pytorchjob/torchrun-cpu"
        cluster.kubectl(f"wait {job} --for=condition=Succeeded --timeout=600s")
        shown = [shell(command) for command in inspections(page)]
        for text in shown[:2]:
            assert "registry.cern.ch/itwinai/dist-ml/itwinai-slim:0.0.7" in text
        for text in shown[2:]:
            assert '"world_size":4' in text
        shell(commands(page, "kubectl delete --all")[0])
        assert "No resources" in cluster.kubectl("get pytorchjobs -n kubeflow")
        (delete,) = commands(page, "kubectl delete deployment")
        assert "training-operator" in shell(delete)
    finally:
        kit.uninstall("training-operator", cluster=cluster)


def dedented(fragment):
    """Indent a container's lines as YAML needs it: the page has them two columns too far."""
    lines = [line for line in fragment.splitlines() if line.strip() != "..."]
    inside = next(index for index, line in enumerate(lines) if "- name:" in line) + 1
    return "\n".join(lines[:inside] + [line.removeprefix("  ") for line in lines[inside:]])


def inspections(page):
    """List what describes pods, and then what shows logs."""
    return commands(page, "kubectl describe") + commands(page, "kubectl logs")


@pytest.mark.slow
@pytest.mark.long
def test_the_workers_of_torchelastics_page_meet_at_etcd_and_train(cluster, apply, shell, tmp_path):
    page, folder = "torchelastic-eks", kit.config.manifests("torch-elastic-eks", "etcd.yaml").parent
    volume = cluster.create_volume("efs-claim")
    mirror(cluster, apply, tmp_path)
    (heredoc,) = [block for block in blocks(page, "bash") if "download-dataset-task" in block]
    assert "pod/download-dataset-task created" in shell(heredoc)
    done = "wait pod/download-dataset-task --for=jsonpath={.status.phase}=Succeeded --timeout=180s"
    cluster.kubectl(done)
    assert "train" in str(volume.ls("tiny-imagenet-200"))
    apply((folder / "etcd.yaml").read_text())
    apply((folder / "s3.yaml").read_text())
    cluster.kubectl("wait pod/s3 pod/etcd --for=condition=Ready --timeout=120s")
    upload_main(cluster)
    (tmp_path / "imagenet.yaml").write_text(imagenet(page))
    placeholders = "export BUCKET=my-bucket USER=me JOB_ID=imagenet\n"
    shell(placeholders + SED_OF_MACOS + commands(page, "sed -i '' 's/<BUCKET>")[0])
    created = shell(commands(page, "kubectl apply -f imagenet.yaml")[0])
    (shown,) = [block for block in blocks(page, "bash") if "kubectl apply -f imagenet.yaml" in block]
    assert created.splitlines() == shown.splitlines()[1:]
    cluster.kubectl("wait pod -l job=imagenet --for=jsonpath={.status.phase}=Succeeded --timeout=600s")
    log = cluster.kubectl("logs imagenet-worker-1")
    assert re.search(r"^download: s3://my-bucket/petctl/me/imagenet/main.py to ", log, re.MULTILINE)
    for line in LINES:
        whole = printed(page, re.escape(line))[0]
        words = re.sub(r"^.*?(\d\d,\d{3}) (main: |coordinator_p2p: )?", "", whole)
        words = words.partition("'participants'")[0].replace("GPU", "CPU")
        assert same_shape(log, words), words
    deleted = shell(commands(page, "kubectl delete -f imagenet.yaml")[0])
    assert deleted.count(" deleted") == 4


# What the page prints that a reader looks for; the rest is of a TorchElastic before torchrun.
LINES = (
    "Loading data from:",
    "Loading model:",
    "running on GPU",
    "Attempting to join next rendezvous",
    "Waiting for remaining peers",
    "All peers arrived. Confirming membership",
    "Rendezvous version 1 is complete",
    "Got next rendezvous",
    "Model state synced",
    "num_data_workers=0",
    "epoch: 0, iteration: 1",
)


def imagenet(page):
    """Write the file that the page applies and does not show, by its fragment, its log and its objects."""
    (fragment,) = [block for block in blocks(page, "bash") if block.startswith("containers:")]
    container = yaml.safe_load(re.sub(r"^ *\.{4}\n", "", fragment, flags=re.MULTILINE))["containers"][0]
    container["args"] += ["/data/tiny-imagenet-200/train", "--epochs", "2"]
    rendezvous = {"NNODES": "1:3", "RDZV_BACKEND": "etcd", "RDZV_ENDPOINT": "etcd:2379"}
    rendezvous |= {"RDZV_ID": "imagenet", "RDZV_CONF": "last_call_timeout=15"}
    container["env"] = [{"name": f"PET_{name}", "value": value} for name, value in rendezvous.items()]
    container["envFrom"] = [{"secretRef": {"name": "imagenet"}}]
    container["volumeMounts"] = [{"name": "persistent-storage", "mountPath": "/data"}]
    claim = {"name": "persistent-storage", "persistentVolumeClaim": {"claimName": "efs-claim"}}
    objects = []
    for name in ("imagenet-worker-1", "imagenet-worker-2"):
        about = {"name": name, "labels": {"app": name, "job": "imagenet"}}
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [claim]}
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}}
        objects.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service})
    return yaml.safe_dump_all(objects)


def mirror(cluster, apply, tmp_path):
    """Serve a small tiny-imagenet-200.zip in the place of the site that the page downloads from."""
    for number in range(32):
        place = tmp_path / "zip" / "tiny-imagenet-200" / "train" / f"n{number % 2}" / f"{number}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (number, 128, 255 * (number % 2))).save(place)
    shutil.make_archive(str(tmp_path / "tiny-imagenet-200"), "zip", tmp_path / "zip")
    packed = (tmp_path / "tiny-imagenet-200.zip").read_bytes()
    apply(MIRROR % base64.b64encode(packed).decode())
    cluster.kubectl("wait -n edu pod/mirror --for=condition=Ready --timeout=60s")


def upload_main(cluster):
    """Upload the program by the S3 API, as the page has it done."""
    account = {"aws_access_key_id": "exercise", "aws_secret_access_key": "exercise"}
    with cluster.port_forward("service/s3", 5000) as address:
        s3 = boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1", **account)
        s3.create_bucket(Bucket="my-bucket")
        s3.upload_file(kit.config.DATA / "trainers" / "main.py", "my-bucket", "petctl/me/imagenet/main.py")
