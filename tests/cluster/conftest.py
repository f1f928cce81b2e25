"""What the tests on a real cluster share: trainers of a few lines, runs that are deleted afterwards."""

import textwrap

import pytest

import kitlib as kit


@pytest.fixture
def write_trainer(tmp_path):
    """Write a trainer and return its path."""

    def write(source: str, name: str = "trainer.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def launch(local_cluster):
    """Launch a job in the shared cluster; whatever is left of it is deleted after the test."""
    launched = []

    def launch_it(job):
        launched.append(job.name)
        return kit.launch(job, cluster=local_cluster)

    yield launch_it
    for name in launched:
        kit.Run(local_cluster.kube, name).delete()


@pytest.fixture
def plain(write_trainer):
    """Make a job whose pods run a Python file by itself, without torchrun: it starts in no time."""

    def make(source: str, *, nodes: int = 2, **job):
        made = kit.IndexedJob(write_trainer(source), nodes=nodes, **job)
        command = ["python", "/trainyard/trainer/trainer.py"]
        containers = [{"name": "pytorch", "command": command}]
        return (
            made.patch(  # a first process without a handler ignores SIGTERM, and would stay for half a minute
                {
                    "spec": {
                        "template": {"spec": {"containers": containers, "terminationGracePeriodSeconds": 1}}
                    }
                }
            )
        )

    return make
