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
READ_PICKLES = {"cifar10_ddp.py", "formats.py"}
# It reads what torch's flight recorder has just written in the same process.
READ_PICKLES |= {"sitecustomize.py"}
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


SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
A_LOADER = "class Loader(yaml.{}): pass\n"


def loads_safely(call: ast.Call, module: ast.Module) -> bool:
    """Check that the loader is a class that this module derives from a safe one of YAML alone."""
    loaders = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "Loader")]
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    safe = {node.name for node in classes if SAFE_LOADERS >= {*map(ast.unparse, node.bases)} != set()}
    bound = [
        node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    bound += [node.arg for node in ast.walk(module) if isinstance(node, ast.arg)]
    bound += [node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    bound += [
        name.asname or name.name
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    ]
    names = [loader.id for loader in loaders if isinstance(loader, ast.Name)]
    return len(loaders) == 1 and len(names) == 1 and names[0] in safe and bound.count(names[0]) == 1


@pytest.mark.parametrize(
    ("source", "safe"),
    [
        (A_LOADER.format("SafeLoader") + "yaml.load(text, Loader)", True),
        (A_LOADER.format("CSafeLoader") + "yaml.load(text, Loader=Loader)", True),
        (A_LOADER.format("Loader") + "yaml.load(text, Loader)", False),
        (A_LOADER.format("UnsafeLoader") + "yaml.load(text, Loader=Loader)", False),
        (A_LOADER.format("SafeLoader, yaml.UnsafeLoader") + "yaml.load(text, Loader)", False),
        (A_LOADER.format("SafeLoader") + "yaml.load(text)", False),
        (A_LOADER.format("SafeLoader") + "yaml.load(text, yaml.Loader)", False),
        (A_LOADER.format("SafeLoader") + "Loader = yaml.Loader\nyaml.load(text, Loader)", False),
        (A_LOADER.format("SafeLoader") + "def read(Loader): yaml.load(text, Loader)", False),
        (A_LOADER.format("SafeLoader") + "from yaml import Loader\nyaml.load(text, Loader)", False),
        ("class Loader: pass\nyaml.load(text, Loader)", False),
        ("from elsewhere import Loader\nyaml.load(text, Loader)", False),
    ],
)
def test_yaml_load_is_safe_by_a_loader_that_the_module_derives_from_a_safe_one(source, safe):
    module = ast.parse(f"import yaml\n{source}")
    (call,) = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    assert loads_safely(call, module) is safe


def test_nothing_is_loaded_by_a_function_that_runs_what_it_reads():
    loads, modules = [], set()
    for name, source in sources():
        module = ast.parse(source)
        for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
            function = ast.unparse(call.func)
            modules.add(function)
            if function in SAFE:
                keyword, value = SAFE[function]
                keywords = {keyword.arg: keyword.value for keyword in call.keywords}
                if getattr(keywords.get(keyword), "value", None) is not value:
                    loads.append(f"{name}:{call.lineno}: {function} without {keyword}={value}")
            elif function == "yaml.load" and loads_safely(call, module):
                continue
            elif function in UNSAFE and name not in READ_PICKLES:
                loads.append(f"{name}:{call.lineno}: {function}")
    assert not loads
    assert {"torch.load", "np.load", "yaml.safe_load"} <= modules, "the product loads files"


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
    with pytest.raises(SystemExit, match="not a model saved by a trainer"):
        evaluate.load(model, torch.device("cpu"))
    folder = tmp_path / "checkpoints"
    with checkpoints.Checkpoints(folder, {"seed": 0}) as saved:
        saved.save({"step": 1}, epoch=0, step=1)
    (whole,) = folder.glob(checkpoints.PATTERN)
    whole.write_bytes(model.read_bytes())
    with contextlib.suppress(checkpoints.CheckpointError):
        assert checkpoints.Checkpoints(folder, {"seed": 0}).load().state is None
    assert not ran.exists()
