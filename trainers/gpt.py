# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Train a small GPT on the source code of Python's standard library.

A token is a byte. A step has the same sequences for any number of ranks and micro-batches, so all of these
commands have the same losses:

    python trainers/gpt.py --steps 20
    torchrun --nproc-per-node 4 trainers/gpt.py --parallel ddp --accumulate 2 --precision bf16 --recompute
    torchrun --nproc-per-node 4 trainers/gpt.py --parallel fsdp --checkpoint-dir data/gpt --stop-after 10
    torchrun --nproc-per-node 2 trainers/gpt.py --parallel fsdp --checkpoint-dir data/gpt  # resumes

Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import gc
import json
import math
import os
import sys
import sysconfig
import time
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import step_recorder  # beside this file
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recomputed


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults train a model of 0.8 million parameters for half a minute on a core."""
    parser = argparse.ArgumentParser(description="Train a small GPT, on one rank or on many.")
    add = parser.add_argument
    add("--parallel", choices=["none", "ddp", "fsdp"], default="none")
    add("--precision", choices=["fp32", "bf16"], default="fp32")
    add("--accumulate", type=int, default=1, help="micro-batches per step")
    add("--sync-always", action="store_true", help="average gradients after each micro-batch, not each step")
    add("--recompute", action="store_true", help="activation checkpointing: store only the inputs of blocks")
    numbers = {"layers": 4, "heads": 4, "width": 128, "context": 64, "steps": 100, "seed": 0, "log-every": 5}
    for name, value in numbers.items():
        add(f"--{name}", type=int, default=value)
    add("--batch-size", type=int, default=32, help="sequences per step, over all ranks and micro-batches")
    add("--lr", type=float, default=0.003)
    add("--clip", type=float, default=1.0, help="maximum norm of the gradient")
    add("--sample", type=int, default=0, help="bytes to generate before and after training")
    add("--checkpoint-dir", type=Path, help="where to save at the end, and from where to resume")
    add("--save-every", type=int, default=0, help="also save every so many steps, in the background")
    add("--stop-after", type=int, help="save and stop after this step, as at the end of a time limit")
    step_recorder.add_flags(parser)
    return parser.parse_args(argv)


def emit(event: str, **fields: object) -> None:
    """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
    line = {"event": event, "time": time.time(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def read_text() -> torch.Tensor:
    """Return the modules of the standard library as one sequence of bytes below 128."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray().join(map(Path.read_bytes, files)), dtype=torch.uint8)
    return text[text < 128]


def read_batch(text: torch.Tensor, step: int, settings: argparse.Namespace) -> torch.Tensor:
    """Return this rank's sequences of a step; those of all ranks together depend only on the step."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - settings.context, (settings.batch_size,), generator=generator)
    mine = starts[dist.get_rank() :: dist.get_world_size()]
    return text[mine[:, None] + torch.arange(settings.context + 1)].long()


def alibi_biases(heads: int, x: torch.Tensor) -> torch.Tensor:
    """Return the attention bias for the distance of two tokens, halved from head to head.

    It masks later tokens. Ofir Press et al., "Train Short, Test Long" (ALiBi), 2022.
    """
    behind = torch.arange(x.shape[1], device=x.device)[:, None] - torch.arange(x.shape[1], device=x.device)
    slopes = 0.5 ** torch.arange(heads, device=x.device)[:, None, None]
    return (-slopes * behind).masked_fill(behind < 0, -math.inf)


class Block(nn.Module):
    """Attention to earlier tokens, then a layer for each token, both with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, alibi_bias: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, alibi_bias.to(query.dtype))
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.layer(self.before_layer(x))


class GPT(nn.Module):
    """A decoder-only transformer (Radford et al., 2019) over bytes."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        width, self.heads, self.recompute = settings.width, settings.heads, settings.recompute
        self.tokens = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, settings.heads) for _ in range(settings.layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        alibi_bias = alibi_biases(self.heads, x)
        for block in self.blocks:
            x = (
                recomputed(block, x, alibi_bias, use_reentrant=False)
                if self.recompute
                else block(x, alibi_bias)
            )
        return self.head(self.norm(x))


def distribute(network: GPT, settings: argparse.Namespace, device: torch.device) -> nn.Module:
    """Return the model in copies (DDP), or with each block split over the ranks (FSDP2)."""
    if settings.parallel == "ddp":
        return DistributedDataParallel(network, bucket_cap_mb=1)
    if settings.parallel == "fsdp":
        policy = MixedPrecisionPolicy(torch.bfloat16 if settings.precision == "bf16" else None, torch.float32)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (*network.blocks, network):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    return network


@torch.no_grad()
def write_sample(model: nn.Module, settings: argparse.Namespace, device: torch.device) -> str:
    """Generate bytes after ``def``; all ranks take part, as each may hold a shard of the model."""
    generator, tokens = torch.Generator().manual_seed(settings.seed), list(b"\ndef ")
    for _ in range(settings.sample):
        context = torch.tensor([tokens[-settings.context :]], device=device)
        probabilities = (model(context)[0, -1].float().cpu() / 0.8).softmax(0)
        tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return bytes(tokens).decode("ascii").strip("\n")


def save(
    network: GPT,
    optimizer: torch.optim.Optimizer,
    settings: argparse.Namespace,
    step: int,
    group: dist.ProcessGroup | None = None,
) -> Future[Any] | None:
    """Save this rank's part of the state; ``step`` is the next one to take.

    With a separate group, a thread writes a copy of the state during training; its future is returned.
    """
    began = time.perf_counter()
    model, state = get_state_dict(network, optimizer)
    content = {"model": model, "optimizer": state, "step": step}
    folder = settings.checkpoint_dir / f"step-{step}"  # .metadata is written last
    saving: Any = None
    if group:
        saving = checkpoint.async_save(content, checkpoint_id=folder, process_group=group)
    else:
        checkpoint.save(content, checkpoint_id=folder)
    emit("checkpoint", step=step, background=bool(group), stopped_s=round(time.perf_counter() - began, 4))
    return saving


def newest(folder: Path | None) -> Path | None:
    """Find the newest complete checkpoint."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")] if folder else []
    return max(complete, key=lambda path: int(path.name.partition("-")[2]), default=None)


def resume(network: GPT, optimizer: torch.optim.Optimizer, settings: argparse.Namespace) -> int:
    """Load this rank's part of a checkpoint of any number of ranks; return the next step."""
    if (folder := newest(settings.checkpoint_dir)) is None:
        return 0
    model, state = get_state_dict(network, optimizer)
    content: dict[str, Any] = {"model": model, "optimizer": state, "step": 0}
    checkpoint.load(content, checkpoint_id=folder)
    set_state_dict(network, optimizer, model_state_dict=model, optim_state_dict=state)
    emit("resume", step=content["step"])
    return content["step"]


def join() -> torch.device:
    """Join the process group; return this rank's device: a GPU only if each rank has its own."""
    cuda = torch.cuda.is_available()
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timedelta(minutes=5))
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count() if cuda else 0
    device_ids = [str(torch.cuda.get_device_properties(index).uuid) if cuda else ""] * dist.get_world_size()
    dist.all_gather_object(device_ids, device_ids[0])
    if not all(device_ids) or len(set(device_ids)) < len(device_ids):
        return torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def backward(model: nn.Module, part: torch.Tensor, settings: argparse.Namespace, *, last: bool) -> float:
    """Add the gradients of a micro-batch; the ranks average them only with the ``last`` one of a step."""
    synchronize = last or settings.sync_always
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(synchronize)
    use_bf16 = settings.precision == "bf16" and settings.parallel != "fsdp"  # whose policy sets it
    with model.no_sync() if isinstance(model, DistributedDataParallel) and not synchronize else nullcontext():
        with torch.autocast(part.device.type, torch.bfloat16, enabled=use_bf16):
            logits = model(part[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten())
        (loss / settings.accumulate).backward()
    return loss.item()


def clip(model: nn.Module, max_norm: float) -> float:
    """Clip the norm of the whole gradient, including the shards on all FSDP ranks; return the norm."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def train(
    model: nn.Module,
    network: GPT,
    optimizer: torch.optim.Optimizer,
    text: torch.Tensor,
    *,
    settings: argparse.Namespace,
    device: torch.device,
    tracer: torch.profiler.profile | argparse.Namespace,
) -> None:
    """Take the remaining steps."""
    begin, end = resume(network, optimizer, settings), settings.stop_after or settings.steps
    activations: dict[str, int] = {}
    group: Any = (
        dist.new_group(backend="gloo") if settings.save_every else None
    )  # separate from that of the gradients
    saving: Future[Any] | None = None
    for step in range(begin, end):
        with step_recorder.reading(settings):
            batch = read_batch(text, step, settings).to(device)
        for parameters in optimizer.param_groups:  # linear warm-up, then half a cosine
            cosine = 0.55 + 0.45 * math.cos(math.pi * step / settings.steps)
            parameters["lr"] = settings.lr * min((step + 1) / 10, cosine)
        step_recorder.compute_longer(settings, dist.get_rank())
        parts, loss = batch.chunk(settings.accumulate), 0.0
        for number, part in enumerate(parts):
            with nullcontext() if activations else step_recorder.count_activations(network, activations):
                loss += backward(model, part, settings, last=number == len(parts) - 1) / len(parts)
        norm, lr = clip(model, settings.clip), optimizer.param_groups[0]["lr"]
        optimizer.step()
        numbers = {"step": step, "loss": round(loss, 4), "norm": round(norm, 4), "lr": round(lr, 6)}
        if step == begin:
            emit("memory", **step_recorder.memory_of(network, optimizer), **activations)
            emit("step", **numbers)  # no rate, as the first step also allocates
            began = time.perf_counter()
        elif step % settings.log_every == 0 or step == end - 1:
            rate = (step - begin) * batch[:, 1:].numel() / (time.perf_counter() - began)
            emit("step", **numbers, tokens_per_s=round(rate, 1))
        optimizer.zero_grad()
        tracer.step()
        if group and (step + 1) % settings.save_every == 0 and step + 1 < end:
            if saving:
                saving.result()
            saving = save(network, optimizer, settings, step + 1, group)
    if saving:
        saving.result()
    if settings.checkpoint_dir:
        save(network, optimizer, settings, end)


def main(argv: list[str] | None = None) -> None:
    """Join, resume, train, save; write a sample before and after."""
    settings, device = parse_settings(argv), join()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if settings.parallel == "none" and ranks > 1:
        raise SystemExit(f"{ranks} ranks would train {ranks} models: choose --parallel ddp or fsdp")
    if settings.batch_size % (parts := ranks * settings.accumulate):
        raise SystemExit(
            f"--batch-size {settings.batch_size}: not a multiple of {parts} ranks x micro-batches"
        )
    torch.manual_seed(settings.seed)  # the same first weights on every rank
    text, network = read_text(), GPT(settings).to(device)
    count = sum(parameter.numel() for parameter in network.parameters())
    model = distribute(network, settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, betas=(0.9, 0.95))
    emit("start", parameters=count, text_bytes=len(text), device=str(device), steps=settings.steps)
    before = write_sample(model, settings, device) if settings.sample else None
    with step_recorder.trace(settings.trace_dir, rank) as tracer:
        train(model, network, optimizer, text, settings=settings, device=device, tracer=tracer)
    if settings.sample and (after := write_sample(model, settings, device)) and rank == 0:
        emit("sample", before=before, after=after)
    emit("end", sent_bytes=step_recorder.bytes_sent())
    del model, network, optimizer
    gc.collect()  # a sharded model's cycles hold the group: its threads must end before the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
