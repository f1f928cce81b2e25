"""What notebook 19 prepares for finetune.py, and reads from what it printed and saved."""

import ast
import pydoc_data.topics
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM

LOSS = r"{'loss': '(?P<loss>[\d.]+)'.*'epoch': '(?P<epoch>[\d.]+)'"


def upload_texts(volume: Any, text: str = "") -> None:
    """Put two texts on the volume: Python's source code, and its manual or a text of the learner's."""
    manual = Path(text).read_text("utf-8") if text else "\n".join(pydoc_data.topics.topics.values())
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    code = "".join(path.read_text("utf-8", errors="ignore") for path in sources)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {"manual": manual[:300_000], "code": code[:600_000]}.items():
            path = Path(folder, f"{name}.txt")
            path.write_text(content, encoding="utf-8")
            volume.upload(path, f"my-model/{name}.txt")


def shapes(volume: Any, base: str) -> tuple[list[tuple[int, int]], int]:
    """List the matrices that get LoRA's, as (d_in, d_out), and count all weights of a model.

    It is made on the device ``meta``, where a tensor has a shape and no memory. As with peft's
    ``all-linear``, the last layer gets none.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = volume.download(base.removeprefix("/data/"), folder) if base.startswith("/") else base
        config = AutoConfig.from_pretrained(source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear = (layer for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    layers = [layer for layer in linear if layer is not model.get_output_embeddings()]
    return [(layer.in_features, layer.out_features) for layer in layers], model.num_parameters()


def sent(run: Any) -> float:
    """Read how many bytes a rank has sent in a step: the mean of all ranks."""
    return run.metrics(pattern=r"bytes sent in a step: (?P<sent>\d+)").sent.astype(float).mean()


def evaluations(run: Any) -> pd.Series:
    """Read the losses on the tenth of the text that is kept for the evaluation, in order."""
    return run.metrics(pattern=r"'eval_loss': '(?P<loss>[\d.]+)'").loss.astype(float)


def continuations(run: Any) -> dict[str, str]:
    """Read how rank 0's model continues the prompt, before the training and after it."""
    rows = run.metrics(pattern=r"(?P<when>before|after): (?P<text>['\"].*['\"])$")
    return dict(zip(rows.when, rows.text.map(ast.literal_eval), strict=True))


def losses(run: Any) -> pd.Series:
    """Read the losses of training, by the share of the text that was read."""
    rows = run.metrics(pattern=LOSS)[["epoch", "loss"]].astype(float)
    return rows.groupby("epoch").loss.mean()
