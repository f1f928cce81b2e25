"""The program that a learner completes: it is trained by torchrun on two ranks, and judged by what it did."""

import ast
from pathlib import Path

import pytest

import kitlib as kit

from ..rows import slow

ROOT = Path(__file__).parents[2]
STUB = ROOT / "notebooks" / "scripts" / "digits_todo.py"


def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_program_with_todos_is_that_of_one_process():
    ours, theirs = functions(ROOT / "trainers" / "digits_single.py"), functions(STUB)
    # The learner's file is anywhere, and so has no digits beside it.
    assert {name for name in ours if ours[name] != theirs.get(name)} == {"emit", "main", "read_digits"}


TODO = {
    1: '    dist.init_process_group("gloo")',
    2: "    sampler, share = DistributedSampler(train), settings.global_batch_size // dist.get_world_size()\n"
    "    loader = DataLoader(train, batch_size=share, sampler=sampler)",
    3: "    model = DistributedDataParallel(model)",
    4: "        sampler.set_epoch(epoch)",
}
SINGLE = "    loader = DataLoader(train, batch_size=settings.global_batch_size, shuffle=True)"
BROADCAST = "\n    for each in model.parameters():\n        dist.broadcast(each.data, 0)\n    evaluate("
SHARD = "    from torch.distributed.fsdp import fully_shard\n    fully_shard(model)"
# What is written for the TODOs instead, a check that fails, and words of its advice.
RIGHT = ({}, "", "")
PROGRAMS = [
    ({2: SINGLE, 4: ""}, "own share", "read by both ranks"),
    ({1: "", 2: SINGLE, 3: "", 4: ""}, "TODO 1", "trains alone"),
    ({2: TODO[2].replace(" // dist.get_world_size()", "")}, "across both ranks", "takes 6"),
    ({3: "", "\n    evaluate(": BROADCAST}, "TODO 3", "after step 1"),
    ({2: SINGLE, 3: "", 4: ""}, "own share", "read by both ranks"),
    ({2: TODO[2].replace("sampler=sampler", "sampler=sampler, num_workers=1")}, "", ""),
    ({3: SHARD}, "", ""),
    ({3: ""}, "TODO 3", "the weights differ"),
    ({4: ""}, "TODO 4", "set_epoch"),
    ({3: "    model = DDPP(model)"}, "it finishes", "'DDPP' is not defined"),
]


def fill(changes):
    """Fill in the TODOs of the program, some of them otherwise."""
    lines = []
    for line in STUB.read_text().splitlines():
        todo = next((number for number in TODO if f"# TODO {number}" in line), None)
        if todo or not line.startswith("    loader = "):
            lines.append(line if todo is None else changes.get(todo, TODO[todo]))
    text = "\n".join(lines) + "\n"
    for old in changes.keys() - TODO.keys():
        text = text.replace(old, changes[old])
    return text


@pytest.mark.parametrize(("changes", "check", "advice"), [RIGHT, *slow(*PROGRAMS)])
def test_the_program_is_trained_on_two_ranks(changes, check, advice, tmp_path):
    program = tmp_path / "my_digits.py"
    program.write_text(fill(changes))
    checklist = kit.check("05", program=program)
    failed = [row for row in checklist if row.right is False]
    assert bool(checklist) is not bool(check), checklist
    assert not check or any(check in row.name and advice in row.advice for row in failed), checklist
    if check == "own share":
        *_, third, last = checklist
        assert (third.right, last.right) == (None, None) and "not checked yet" in last.advice


def test_a_program_without_changes_is_not_run():
    first, *open_rows = kit.check("05", program=STUB)
    assert "unchanged" in first.advice
    assert not any(row.right for row in open_rows)


@pytest.mark.parametrize("program", [None, "no-such-file.py"])
def test_a_program_that_is_no_file_is_named(program):
    first, *_ = kit.check("05", program=program)
    assert "should be the path of your file" in first.advice
