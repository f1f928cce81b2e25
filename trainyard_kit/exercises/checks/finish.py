"""06: repair the end of a training, where only one rank calls a collective and saves the wrapped model.

Two gloo processes run the learner's function with a wrapped network. A rank that waits for a collective which
the other never calls fails with gloo's error once the other process has ended and closed its connection.
"""

import json
import multiprocessing
import os
import pickle
import random
import tempfile
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe, explain

RANKS, SECONDS = 2, 60
MAX_CORRECT = 1000  # correct images of a rank, drawn at random so that no constant is their sum
STUB = """
def finish(model, correct, rank, path):
    if rank == 0:
        torch.distributed.all_reduce(correct)
        torch.save(model.state_dict(), path)
    return correct
"""
EXERCISE = Exercise("finish", seconds=60, stub=STUB)


def _rank(finish: Answer, rank: int, correct: int, folder: Path) -> None:
    """Run one rank and write its results."""
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the machine's name may not resolve
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", timedelta(seconds=SECONDS), RANKS, rank
    )
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    path = folder / f"{rank}" / "model.pt"  # a file per rank shows which ranks save
    path.parent.mkdir()
    record: dict[str, object] = {"correct": correct}
    try:
        answer = finish(model, torch.tensor([float(correct)]), rank, str(path))
        record["answer"] = answer if answer is None or isinstance(answer, str) else float(answer)
    except Exception as error:  # noqa: BLE001 whatever the learner's code raises
        message = str(error).lower()
        lost = isinstance(error, RuntimeError) and ("gloo" in message or "peer" in message)
        record["lost" if lost else "error"] = explain(error)
    record["saves"] = int(path.exists())
    record["weights"] = {name: weight.tolist() for name, weight in model.module.state_dict().items()}
    Path(folder, f"rank-{rank}").write_text(json.dumps(record), encoding="utf-8")


@lru_cache(maxsize=1)
def run_ranks(finish: Answer) -> tuple[tuple[dict[str, Any], ...], dict[str, Any] | None]:
    """Run both ranks; return their records and the saved state dict."""
    import torch  # once, before the processes are forked

    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder, fork = Path(name), multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=_rank, args=(finish, rank, correct, folder), daemon=True)
            for rank, correct in enumerate(random.sample(range(1, MAX_CORRECT), RANKS))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(2 * SECONDS)
            process.kill()
        files = (folder / f"rank-{rank}" for rank in range(RANKS))
        records = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        for rank, record in enumerate(records):
            if error := record.get("error"):
                raise NotYet(f"rank {rank}: {error}")
        paths = sorted(folder.glob("*/model.pt"))
        try:
            saved = torch.load(paths[0], weights_only=True) if paths else None
        except pickle.UnpicklingError:
            saved = ()
    return tuple(records), saved


@EXERCISE.check("both ranks finish", essential=True)
def ranks_finish(finish: Answer) -> None:
    records, _ = run_ranks(finish)
    if any("lost" in record or not record for record in records):
        raise NotYet("one rank waits in a collective that the other never calls: all ranks must call it")


@EXERCISE.check("both ranks return the sum over all ranks")
def returns_sum(finish: Answer) -> None:
    records = run_ranks(finish)[0]
    counts = [record["correct"] for record in records]
    for rank, record in enumerate(records):
        if record["answer"] != sum(counts):
            raise NotYet(
                f"the ranks have {' and '.join(map(str, counts))}: rank {rank} returns "
                f"{describe(record['answer'])}, and should return {float(sum(counts))}"
            )


@EXERCISE.check("only one rank saves")
def one_rank_saves(finish: Answer) -> None:
    saves = [record["saves"] for record in run_ranks(finish)[0]]
    if sum(saves) != 1:
        raise NotYet(f"the ranks save {saves} times: only rank 0 should save")


@EXERCISE.check("the file loads into a model without DDP")
def file_loads(finish: Answer) -> None:
    saved = run_ranks(finish)[1]
    if saved is None:
        raise NotYet("there is no file at path: torch.save should write it")
    if not isinstance(saved, dict):
        raise NotYet("it contains a whole object: save its state_dict(), which contains only named tensors")
    if {"weight", "bias"} == set(saved):
        values: dict[str, object] = {name: getattr(value, "tolist", list)() for name, value in saved.items()}
        if values != run_ranks(finish)[0][0]["weights"]:
            raise NotYet("it does not contain the weights of the model that is passed: save those")
    else:
        raise NotYet(f"it contains {', '.join(saved)}; the network has weight and bias: save model.module's")
