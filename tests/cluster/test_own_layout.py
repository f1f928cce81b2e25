"""Projects on a real cluster: a script below its root, a module, and more than a ConfigMap holds."""

import kitlib as kit

TRAIN = """import argparse, os, sys
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from mylib.model import build
from mylib import WEIGHTS
p = argparse.ArgumentParser(); p.add_argument("--batch_size", type=int)
print(build(), len(WEIGHTS), "batch", p.parse_args().batch_size)
"""
MODULE = "from .model import build\nfrom . import WEIGHTS\nprint(build(), len(WEIGHTS), __package__)\n"
INIT = "import pathlib\nWEIGHTS = pathlib.Path(__file__).with_name('weights.bin').read_bytes()\n"


def test_a_script_below_its_root_and_a_module_run_with_their_packages_and_data(local_cluster, tmp_path):
    for name in ("mylib", "tools"):
        (tmp_path / name).mkdir()
    (tmp_path / "mylib" / "__init__.py").write_text(INIT)
    (tmp_path / "mylib" / "weights.bin").write_bytes(bytes(1000))
    (tmp_path / "mylib" / "model.py").write_text("def build(): return 'built'\n")
    (tmp_path / "mylib" / "run.py").write_text(MODULE)
    (tmp_path / "tools" / "train.py").write_text(TRAIN)
    script = tmp_path / "tools" / "train.py"
    small = kit.launch(script, cluster=local_cluster, nodes=1, args={"batch_size": 4})
    small.wait(timeout=300)
    # torch warns of names that are not in DNS yet, and an agent of torchrun of peers that end first.
    assert "built 1000 batch 4" in small.logs(rank=0).splitlines()
    (tmp_path / "mylib" / "weights.bin").write_bytes(bytes(3_000_000))
    large = [
        kit.launch(script, cluster=local_cluster, nodes=2, args={"batch_size": 8}),
        kit.launch(module="mylib.run", root=tmp_path, cluster=local_cluster, nodes=1),
    ]
    for run in large:
        run.wait(timeout=300)
    assert "built 3000000 batch 8" in large[0].logs(rank=1).splitlines()
    assert "built 3000000 mylib" in large[1].logs(rank=0).splitlines()
    for run in (small, *large):
        run.delete()
