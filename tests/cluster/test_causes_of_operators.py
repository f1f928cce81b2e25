"""Causes that lie with operators: their time-outs, and operators that do not run. Named by ``run.why()``."""

import pytest

import kitlib as kit
from kitlib.errors import KitError

from ..patience import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLEEPS = "import time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def operator(own_cluster):
    """The Training Operator in a cluster of this module's own."""
    kit.install("training-operator", cluster=own_cluster)
    return own_cluster


def sleeping(write_trainer, spec=None, **kind):
    """Make a PyTorchJob whose ranks sleep."""
    path = write_trainer(SLEEPS)
    command = {"containers": [{"name": "pytorch", "command": ["python", f"/trainyard/trainer/{path.name}"]}]}
    replica = {"template": {"spec": command | {"terminationGracePeriodSeconds": 1}}}
    replicas = {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}
    return kit.PyTorchJob(path, nodes=2, **kind).patch({"spec": replicas | (spec or {})})


def cause_of(run, *kinds):
    return until(lambda: next((cause for cause in run.why().causes if cause.kind in kinds), None), str(kinds))


def test_the_deadline_of_a_pytorch_job_is_named(operator, write_trainer):
    job = sleeping(write_trainer, {"runPolicy": {"activeDeadlineSeconds": 5}})
    run = kit.launch(job, cluster=operator)
    cause = cause_of(run, "JobDeadline")
    assert cause.who == f"PyTorchJob {run.name}"
    assert "is past its activeDeadlineSeconds of 5" in cause.what  # v1.8.1 looks at changes alone
    operator.kubectl(f"label pod {run.name}-worker-0 changed=yes")
    ended = until(lambda: next((item for item in run.why().causes if "was ended" in item.what), None))
    assert "longer than its activeDeadlineSeconds" in ended.what
    run.delete()


def test_a_suspended_pytorch_job_says_how_it_is_resumed(operator, write_trainer):
    run = kit.launch(sleeping(write_trainer, {"runPolicy": {"suspend": True}}), cluster=operator)
    cause = cause_of(run, "Suspended")
    assert '{"spec":{"runPolicy":{"suspend":false}}}' in cause.fix
    run.delete()


def test_an_operator_that_does_not_run_is_named(operator, write_trainer):
    deployment = "-n kubeflow deployment/training-operator"
    operator.kubectl(f"scale --replicas=0 {deployment}")
    webhooks = "validatingwebhookconfiguration validator.training-operator.kubeflow.org"
    try:
        with pytest.raises(KitError, match=r"(?s)webhook.*operator"):
            until(lambda: kit.launch(sleeping(write_trainer), cluster=operator).delete())
        operator.kubectl(f"delete {webhooks}")
        run = kit.launch(sleeping(write_trainer), cluster=operator)
        cause = cause_of(run, "NoOperator")
        assert "training-operator does not run" in cause.what
        assert 'kit.install("training-operator")' in cause.fix
        run.delete()
    finally:
        operator.kubectl(f"scale --replicas=1 {deployment}")
