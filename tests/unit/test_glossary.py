"""The glossary has every term of the course, and every link to it resolves."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
HEADINGS = re.findall(r"^## (.+)$", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
# What a learner meets in the notebooks without an explanation beside it.
TERMS = """
    all-reduce; Amdahl's law; backend; batch; checkpoint; ConfigMap; container; control plane;
    controller; CRD; data parallel; DDP; Deployment; digest; DistributedSampler; efficiency; elastic;
    epoch; etcd; event; FSDP; gang scheduling; gloo; gradient; headless Service; heartbeat; image;
    Indexed Job; Job; kubectl; kubelet; Kubernetes; label; layer; learning rate; limit; loss; manifest;
    namespace; NCCL; node; operator; parameter server; PersistentVolume; PersistentVolumeClaim; pod;
    preemption; PriorityClass; process group; PyTorchJob; quota; rank; RBAC; ReadWriteMany; registry;
    rendezvous; replica; request; run; scheduler; Service; ServiceAccount; shared memory; speed-up;
    staleness; state_dict; step; StorageClass; taint and toleration; task; torchrun; TrainJob; world
    size
"""


def test_the_terms_of_the_course_are_explained():
    terms = [" ".join(word.split()) for word in TERMS.split(";")]
    assert [term for term in terms if term not in HEADINGS] == []


def test_terms_are_in_the_alphabets_order():
    assert sorted(HEADINGS, key=str.lower) == HEADINGS
