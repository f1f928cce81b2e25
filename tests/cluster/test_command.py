"""The command on a real cluster, where kubectl would say NotFound, or an answer would never come."""

import pytest
from click.testing import CliRunner

from trainyard_kit.cli.main import main


def run(words, cluster):
    return CliRunner().invoke(main, [*words.split(), "-c", cluster.name])


@pytest.mark.parametrize("words", ["run delete nosuch", "volume delete missing", "workshop remove nobody"])
def test_deleting_what_is_not_there_is_an_error_unless_it_is_ignored(local_cluster, words):
    done = run(words, local_cluster)
    assert done.exit_code == 1
    assert "there is no such" in done.stderr
    assert "is deleted" not in done.output
    assert run(f"{words} --ignore-not-found", local_cluster).exit_code == 0


def test_requests_above_the_gpus_of_every_node_are_refused_at_once(local_cluster):
    done = run("launch trainers/digits_ddp.py --gpus 16 --name greedy", local_cluster)
    assert done.exit_code == 1
    assert "a pod requests 16 GPUs, and the largest of" in done.stderr
    assert (
        f"trainyard cluster create {local_cluster.name} --provider local --gpus 16 --recreate" in done.stderr
    )
    assert "greedy" not in run("run list -o name", local_cluster).stdout
