"""Files that somebody hands over (models, checkpoints, arrays, manifests) run nothing when they are read."""

import ast
import contextlib
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Not what else may lie in a clone: environments, an editor's copies, other checkouts.
PRODUCT = ("kitlib", "localkube", "programs", "trainers", "trainyard_kit", "notebooks", "packaging")
# They read CIFAR-10's own files, which are pickles (docs/security.md), or say what such an error means.
READ_PICKLES = {"cifar10_ddp.py", "cifar10_checkpoint.py", "cifar10_fsdp.py", "evaluate.py", "formats.py"}
SAFE = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
SAFE["numpy.load"] = SAFE["np.load"]
UNSAFE = {"pickle.load", "pickle.loads", "joblib.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
UNSAFE |= {"marshal.loads", "shelve.open", "dill.load", "dill.loads", "pandas.read_pickle", "torch.jit.load"}


def sources() -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each module and notebook of the product."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield (
            path.name,
            "\n".join(line for cell in code for line in cell.splitlines() if line[:1] not in "%!"),
        )


def test_nothing_is_loaded_by_a_function_that_runs_what_it_reads():
    found, seen = [], set()
    for name, source in sources():
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            function = ast.unparse(call.func)
            seen.add(function)
            if function in SAFE:
                keyword, value = SAFE[function]
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                if getattr(given.get(keyword), "value", None) is not value:
                    found.append(f"{name}:{call.lineno}: {function} without {keyword}={value}")
            elif function in UNSAFE and name not in READ_PICKLES:
                found.append(f"{name}:{call.lineno}: {function}")
    assert not found
    assert {"torch.load", "np.load", "yaml.safe_load"} <= seen, "the product loads files"


class Code:
    """Runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["pickle", "archive"])
def test_a_model_or_checkpoint_with_code_in_it_is_refused_and_does_not_run(kind, tmp_path):
    torch = pytest.importorskip("torch")
    import checkpoints
    import evaluate

    ran, model = tmp_path / "ran", tmp_path / "model.pt"
    content = {"model": "resnet9", "classes": ["a"], "weights": Code(ran), "state": Code(ran)}
    if kind == "pickle":
        model.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, model)
    with pytest.raises(SystemExit, match="no model that a trainer saved"):
        evaluate.load(model, torch.device("cpu"))
    folder = tmp_path / "checkpoints"
    with checkpoints.Checkpoints(folder, {"seed": 0}) as saved:
        saved.save({"step": 1}, epoch=0, step=1)
    (whole,) = folder.glob(checkpoints.PATTERN)
    whole.write_bytes(model.read_bytes())
    with contextlib.suppress(checkpoints.Refused):
        assert checkpoints.Checkpoints(folder, {"seed": 0}).load().state is None
    assert not ran.exists()
