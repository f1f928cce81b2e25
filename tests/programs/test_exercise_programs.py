"""The program that a learner completes: it is trained by torchrun on two ranks, and judged by what it did."""

import ast
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]


def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_program_with_todos_is_that_of_one_process():
    ours, theirs = (
        functions(ROOT / "trainers" / "digits_single.py"),
        functions(ROOT / "notebooks" / "scripts" / "digits_todo.py"),
    )
    # The learner's file is anywhere, and so has no digits beside it.
    assert {name for name in ours if ours[name] != theirs.get(name)} == {"emit", "main", "read_digits"}


TODO = {
    1: '    dist.init_process_group("gloo")',
    2: "    sampler, share = DistributedSampler(train), settings.global_batch_size // dist.get_world_size()\n"
    "    loader = DataLoader(train, batch_size=share, sampler=sampler)",
    3: "    model = DistributedDataParallel(model)",
    4: "        sampler.set_epoch(epoch)",
}


def filled(**changes):
    """Fill in the TODOs of the program, some of them otherwise."""
    lines = []
    for line in (ROOT / "notebooks" / "scripts" / "digits_todo.py").read_text().splitlines():
        todo = next((number for number in TODO if f"# TODO {number}" in line), None)
        if todo is None and not line.startswith("    loader = "):
            lines += [changes["end"]] if "end" in changes and line.startswith("    evaluate(") else []
            lines.append(line)
        elif todo:
            lines.append(changes.get(f"todo_{todo}", TODO[todo]))
    return "\n".join(lines) + "\n"


SINGLE = "    loader = DataLoader(train, batch_size=settings.global_batch_size, shuffle=True)"


PROGRAMS = {
    "solution": ({}, "", ""),
    "alone": (
        dict.fromkeys(("todo_1", "todo_3", "todo_4"), "") | {"todo_2": SINGLE},
        "TODO 1",
        "trains alone",
    ),
    "same images": ({"todo_2": SINGLE, "todo_4": ""}, "own share", "read by both ranks"),
    "whole batch": (
        {"todo_2": TODO[2].replace(" // dist.get_world_size()", "")},
        "across both ranks",
        "takes 6",
    ),
    "broadcast at the end": (
        {"todo_3": "", "end": "    for each in model.parameters():\n        dist.broadcast(each.data, 0)"},
        "TODO 3",
        "after step 1",
    ),
    "only TODO 1": (
        dict.fromkeys(("todo_3", "todo_4"), "") | {"todo_2": SINGLE},
        "own share",
        "read by both ranks",
    ),
    "worker processes": (
        {"todo_2": TODO[2].replace("sampler=sampler", "sampler=sampler, num_workers=1")},
        "",
        "",
    ),
    "sharded": (
        {"todo_3": "    from torch.distributed.fsdp import fully_shard\n    fully_shard(model)"},
        "",
        "",
    ),
    "no wrapper": ({"todo_3": ""}, "TODO 3", "the weights differ"),
    "no set_epoch": ({"todo_4": ""}, "TODO 4", "set_epoch"),
    "misspelt": ({"todo_3": "    model = DDPP(model)"}, "it finishes", "'DDPP' is not defined"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if number else []) for number, name in enumerate(PROGRAMS)],
)
def test_the_program_is_trained_on_two_ranks(name, tmp_path):
    changes, check, advice = PROGRAMS[name]
    program = tmp_path / "my_digits.py"
    program.write_text(filled(**changes))
    checklist = kit.check("05", program=program)
    if name == "only TODO 1":
        assert [row.right for row in checklist][-2:] == [None, None]
        assert "not checked yet" in [*checklist][-1].advice
    if not check:
        assert checklist, checklist
    else:
        assert any(check in row.name and advice in row.advice for row in checklist if row.right is False), (
            checklist
        )


def test_a_program_without_changes_is_not_run():
    first, *open_rows = kit.check("05", program=ROOT / "notebooks" / "scripts" / "digits_todo.py")
    assert "unchanged" in first.advice
    assert not any(row.right for row in open_rows)


@pytest.mark.parametrize("program", [None, "no-such-file.py", 5])
def test_a_program_that_is_no_file_is_named(program):
    first, *_ = kit.check("05", program=program)
    assert "should be the path of your file" in first.advice
