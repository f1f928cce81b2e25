"""A learner's own programs and functions on a cluster: unchanged, measured, and their model fetched."""

import textwrap
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import RunFailed

pytestmark = pytest.mark.cluster

PROGRAM = """
    import argparse
    import torch
    import torch.distributed as dist
    from net.layers import build

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int)
        given = parser.parse_args()
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(build(open("sizes.txt").read()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(given.epochs):
            loss = (model(torch.ones(8, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"Epoch {epoch} | loss: {loss.item():.5f}")
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "model.pt")
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


def test_an_unchanged_program_of_several_files_is_measured_and_its_model_fetched(local_cluster, tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "layers.py").write_text(
        "import torch\ndef build(sizes):\n    return torch.nn.Linear(*map(int, sizes.split()))\n"
    )
    (tmp_path / "sizes.txt").write_text("4 2")
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    volume = local_cluster.create_volume("own-programs")
    options = {"nodes": 2, "args": {"epochs": 4}, "files": ["sizes.txt"], "workspace": volume, "name": "own"}
    run = kit.launch(program, cluster=local_cluster, **options)
    try:
        run.wait(timeout=240)
        losses = run.metrics()
        assert len(losses) == 8 and losses.loss.iloc[-1] < losses.loss.iloc[0]
        epochs = run.metrics(pattern=r"Epoch (?P<step>\d+) \| loss: (?P<loss>\S+)")
        assert sorted(epochs.step) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert "2 ranks over 3 steps" in repr(run.plot())
        model = volume.download("runs/own/model.pt", tmp_path / "fetched.pt")
        assert model.stat().st_size > 500
    finally:
        run.delete()
        volume.delete()


def fail_on_one_rank(culprit):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == culprit:
        raise ValueError("this rank is the culprit")
    dist.barrier()


def test_a_functions_failure_on_a_cluster_names_the_learners_own_line(local_cluster):
    run = kit.launch(fail_on_one_rank, nodes=2, args={"culprit": 1}, name="own-fails", cluster=local_cluster)
    line = (
        Path(__file__).read_text().splitlines().index('        raise ValueError("this rank is the culprit")')
    )
    try:
        with pytest.raises(RunFailed, match="rank 1 failed first: ValueError") as error:
            run.wait(timeout=240)
        assert f"line {line + 1}, in fail_on_one_rank" in error.value.detail
    finally:
        run.delete()
