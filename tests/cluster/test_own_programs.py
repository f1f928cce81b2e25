"""A learner's own programs and functions on a cluster: unchanged, measured, and their model fetched."""

import json
import subprocess
import sys
import textwrap

import pytest

import kitlib as kit

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


READS = """
    import json, os
    from pathlib import Path

    def read(folder):
        files = sorted(path for path in (folder / "数据").rglob("*") if path.is_file())
        return [(str(path.relative_to(folder)), path.read_text(), path.stat().st_mode & 73) for path in files]

    print(json.dumps([read(Path(".")), read(Path(__file__).parent)]), flush=True)
"""
STRANGE = [
    *(
        "\u00e9",
        "e\u0301",
        "训练.txt",
        "测试.txt",
        "a b.txt",
        "a_b.txt",
        "A",
        "a",
        ".hidden",
        "-dash",
        "'q\"",
        "a\nb",
        "\x01",
        "#",
        "%s",
    ),
    *(
        "$(HOME)",
        "back\\slash",
        "x" * 255,
        "数" * 85,
        "a..b",
        "a:b",
        "~",
        "\u2028",
        "empty folder/no",
        "run.sh",
    ),
]


def test_files_of_any_name_are_read_as_at_home(local_cluster, tmp_path):
    (tmp_path / "数据" / "empty folder").mkdir(parents=True)
    for name in STRANGE:
        (tmp_path / "数据" / name).write_text(name)
    (tmp_path / "数据" / "run.sh").chmod(0o755)
    program = tmp_path / "$(HOSTNAME) 读.py"
    program.write_bytes(b"\xef\xbb\xbf" + textwrap.dedent(READS).replace("\n", "\r\n").encode())
    at_home = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, check=True).stdout
    run = kit.launch(program, nodes=1, name="own-names", files=["数据"], cluster=local_cluster)
    try:
        run.wait(timeout=240)
        assert json.loads(run.logs(rank=0).splitlines()[-1]) == json.loads(at_home)
    finally:
        run.delete()


WRITES = """
import pathlib, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    (pathlib.Path("results") / "epoch.txt").write_text("one")
    with open("results/losses.csv", "a") as losses:
        losses.write("0,0.5\\n")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_program_changes_and_writes_files_on_its_workspace(local_cluster, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "losses.csv").write_text("epoch,loss\n")
    (tmp_path / "write.py").write_text(WRITES)
    volume = local_cluster.create_volume("own-results")
    options = {"nodes": 2, "files": ["results"], "workspace": volume, "cluster": local_cluster}
    run = kit.launch(tmp_path / "write.py", name="own-results", **options)
    try:
        run.wait(timeout=240)
        downloaded = volume.download("runs/own-results/results", tmp_path / "kept")
        assert (downloaded / "losses.csv").read_text() == "epoch,loss\n0,0.5\n"
        assert (downloaded / "epoch.txt").read_text() == "one"
    finally:
        run.delete()
        volume.delete()


SAYS = "import json, sys\nprint(json.dumps(sys.argv[1:]), flush=True)\n"
TRAPS = [
    "$(HOME)",
    "$(RUN_ID)",
    "$$(HOME)",
    "$$",
    "$HOME",
    "`id`",
    "'",
    '"',
    "\\",
    "\n",
    "--nnodes=9",
    "--",
    "-m",
    "",
]


def test_a_program_gets_the_arguments_that_torchrun_and_python_give_it(local_cluster, tmp_path):
    """Of three ways; torchrun itself replaces ``$$`` and ``${local_rank}``, at home as in a pod."""
    program, words = tmp_path / "say.py", [*TRAPS, "é", "训练", "\u2028", "${local_rank}"]
    program.write_text(SAYS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", program, *words]
    at_home = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    here = kit.torchrun(program, args=words)
    by_torchrun = kit.IndexedJob(program, nodes=1, args=words, name="own-words")
    container = {"name": "pytorch", "command": ["python", "/trainyard/trainer/say.py"]}
    by_python = by_torchrun.patch({"spec": {"template": {"spec": {"containers": [container]}}}})
    try:
        assert json.loads(here.wait(timeout=120).logs(rank=0).splitlines()[-1]) == at_home
        for job, expected in ((by_torchrun, at_home), (by_python, words)):
            run = kit.launch(job, cluster=local_cluster, replace=True)
            run.wait(timeout=240)
            assert json.loads(run.logs(rank=0).splitlines()[-1]) == expected
    finally:
        here.delete()
        run.delete()
