"""Which operators there are: version, where their manifests come from, what has to be ready. Data only.

What the kit changes in the manifests is in ``manifests/operators/``, a kustomization each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kitlib import config


@dataclass(frozen=True)
class Source:
    """Where manifests lie.

    Attributes:
        url: A file, or an archive (``.tar.gz``) whose one top folder has the version's name.
        folder: Which folder of the archive; empty for a file.
        digest: Of what is taken, by `sources.digest`. It is of the files and not of the archive, which is
            packed anew from time to time.
    """

    url: str
    digest: str
    folder: str = ""


@dataclass(frozen=True)
class Part:
    """One set of objects that is installed together.

    Attributes:
        name: Its folder in ``manifests/operators``, and the value of its label.
        version: Of the program.
        workload: What has to be available: kind, namespace and name.
        source: Where its manifests come from; None if they are the kit's own.
        program: What stands for its image on local nodes, as ``kit images get`` calls it.
        then: The kind of what lies in its folder ``then``: applied once its webhooks answer.
        code: A file of the kit that travels in its ConfigMap.
    """

    name: str
    version: str
    workload: tuple[str, str, str]
    source: Source | None = None
    program: str = ""
    then: str = ""
    code: Path | None = None


def _tagged(repository: str, version: str, folder: str, digest: str) -> Source:
    url = f"https://github.com/{repository}/archive/refs/tags/{version}.tar.gz"
    return Source(url, digest, folder)


_TRAINING_OPERATOR = Part(
    "training-operator",
    "v1.8.1",
    ("Deployment", "kubeflow", "training-operator"),
    _tagged(
        "kubeflow/training-operator",
        "v1.8.1",
        "manifests",
        "c13c9bfbb6be3ff0dc881c02e23466fd1955dd3343a9096f47b703e19878a1d7",
    ),
    "training-operator",
)
_JOBSET = Part(
    "jobset",
    "v0.8.2",
    ("Deployment", "jobset-system", "jobset-controller-manager"),
    _tagged(
        "kubernetes-sigs/jobset",
        "v0.8.2",
        "config",
        "6095f0d26ce622fd39b81a22404859ba402d4ec9469115b896a6f41893338ebb",
    ),
    "jobset",
)
_TRAINER = Part(
    "trainer",
    "v2.0.0",
    ("Deployment", "kubeflow-system", "kubeflow-trainer-controller-manager"),
    _tagged(
        "kubeflow/trainer",
        "v2.0.0",
        "manifests",
        "45f3e9107c0bb63b8fc618f080f320c69bf49c0763c898faac4841785c969673",
    ),
    "trainer-controller-manager",
    then="clustertrainingruntimes.trainer.kubeflow.org",
)
_METRICS_SERVER = Part(
    "metrics-server",
    "v0.9.0",
    ("Deployment", "kube-system", "metrics-server"),
    _tagged(
        "kubernetes-sigs/metrics-server",
        "v0.9.0",
        "manifests",
        "d057387618040640a796d9b135c1faa66741d9b4fbb47e80d1ad30ef65cd6a49",
    ),
)
_NVIDIA = Part(
    "nvidia-device-plugin",
    "v0.17.1",
    ("DaemonSet", "kube-system", "nvidia-device-plugin-daemonset"),
    Source(
        "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/v0.17.1/deployments/static/"
        "nvidia-device-plugin.yml",
        "cae70fb768faf18e9e4005a0e3b5a020569e7396066034a415bfbcf2806dd5fc",
    ),
)
_ELASTIC_JOB = Part(
    "elastic-job",
    "v1alpha1",
    ("Deployment", "elastic-job", "elastic-job-controller"),
    program="etcd-v2",
    code=config.DATA / "operators" / "elastic_job" / "controller.py",
)

# In the order in which the parts are installed; they are removed the other way round.
OPERATORS: Mapping[str, tuple[Part, ...]] = {
    "training-operator": (_TRAINING_OPERATOR,),
    "trainer": (_JOBSET, _TRAINER),
    "metrics-server": (_METRICS_SERVER,),
    "nvidia-device-plugin": (_NVIDIA,),
    "elastic-job": (_ELASTIC_JOB,),
}
