"""Parts of the parameter server by themselves: shards, checkpoints, the state, and what is generated."""

import importlib.util
import platform
import subprocess
import sys

import pytest
import torch
from parameter_server import checkpoints, shards, state_file, user_model
from parameter_server.protocol_pb2 import APPLIED, DUPLICATE, STALE
from parameter_server.settings import JobSettings
from parameter_server.shard import Shard
from torch import nn

from .forked import TRAINERS

PACKAGE = TRAINERS / "parameter_server"


def net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_shard(optimizer=sgd, *, grads_to_wait=1, bound=4):
    (groups,) = shards.plan(net(), 1)
    return Shard(groups, optimizer, grads_to_wait=grads_to_wait, staleness_bound=bound)


def gradient(shard, value):
    """Return what a worker would send: the same number everywhere, and one batch seen."""
    return shards.pack(
        [torch.full((group.size,), value, dtype=torch.float32).to(group.dtype) for group in shard.groups]
    )


def push(shard, minibatch, value=1.0, *, epoch=0, version=None, incarnation=None):
    version = shard.version if version is None else version
    incarnation = shard.incarnation if incarnation is None else incarnation
    tensors = gradient(shard, value)
    return shard.push(epoch, minibatch, version=version, incarnation=incarnation, tensors=tensors)[0]


def values(shard):
    return [bytes(tensor.data) for tensor in shard.read()[1]]


# The plan


def test_servers_share_the_model_evenly_and_have_each_tensor_once():
    model = nn.Sequential(*(nn.Linear(32, width) for width in (64, 64, 32, 32)))
    for servers in (1, 2, 3):
        plan = shards.plan(model, servers)
        names = [member.name for groups in plan for group in groups for member in group.members]
        assert sorted(names) == sorted(model.state_dict())
        loads = [sum(group.size for group in groups) for groups in plan]
        assert max(loads) - min(loads) <= 64 * 32


def test_two_processes_cut_a_model_alike_and_notice_where_they_have_not():
    wider = nn.Sequential(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9))
    first, second, other = ([*map(shards.layout, shards.plan(model, 2))] for model in (net(), net(), wider))
    assert first == second != other


def test_a_flat_model_computes_what_it_did_and_bytes_carry_it_to_another():
    model, copy_of_model = net(), net()
    x = torch.randn(2, 3, 8, 8)
    expected = model.eval()(x)
    flats = [shards.flatten(groups) for groups in shards.plan(model, 2)]
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        for parameter in copy_of_model.parameters():
            parameter.zero_()
    theirs = [shards.flatten(groups) for groups in shards.plan(copy_of_model, 2)]
    for source, target in zip(flats, theirs, strict=True):
        shards.unpack(shards.pack(source), target)
    assert torch.equal(copy_of_model.eval()(x), expected)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_tensors_of_another_model_are_refused():
    flats = [torch.zeros(4), torch.zeros(2, dtype=torch.int64)]
    with pytest.raises(ValueError, match="1 tensors were received, and 2 are needed"):
        shards.unpack(shards.pack(flats[:1]), flats)
    with pytest.raises(ValueError, match=r"float32 \[4\].* were received, and torch.float32 \[5\] is needed"):
        shards.unpack(shards.pack(flats[:1]), [torch.zeros(5)])


# A shard


def test_a_shards_steps_are_those_of_the_optimizer_on_the_whole_model():
    model = net()
    optimizer = sgd(model.parameters())
    shard = make_shard()
    for step in range(3):
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        assert push(shard, step, 0.5) == APPLIED
    ours = {m.name: m.tensor for group in shard.groups for m in group.members}
    assert all(torch.equal(ours[name], parameter) for name, parameter in model.named_parameters())


def test_a_minibatch_is_applied_once_however_often_it_is_pushed():
    shard = make_shard()
    assert push(shard, 3) == APPLIED
    before = values(shard)
    assert push(shard, 3) == DUPLICATE
    assert values(shard) == before
    assert push(shard, 3, epoch=1) == APPLIED
    shard.close(1)
    assert push(shard, 17) == DUPLICATE  # epoch 0 is over


def test_a_stale_gradient_is_refused_and_may_be_pushed_again():
    shard = make_shard(bound=2)
    assert push(shard, 0, incarnation=shard.incarnation ^ 1) == STALE
    for minibatch in range(3):
        assert push(shard, minibatch, version=0) == APPLIED
    assert push(shard, 9, version=0) == STALE
    assert push(shard, 9) == APPLIED


def test_changes_of_a_running_variance_that_did_not_see_each_other_leave_it_positive():
    shard = make_shard(bound=99)
    for minibatch in range(16):  # each takes a tenth of it away; all have seen the 1 of the beginning
        assert push(shard, minibatch, -0.1, version=0) == APPLIED
    (variance,) = (m.tensor for group in shard.groups for m in group.members if m.name == "1.running_var")
    assert variance.min() > 0


def test_gradients_of_one_version_are_averaged_and_later_ones_refused():
    def plain(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    shard = make_shard(plain, grads_to_wait=2)
    first = shard.groups[0].members[0].tensor.detach().clone()
    assert push(shard, 0, 1.0, version=0) == APPLIED
    assert shard.version == 0
    assert push(shard, 1, 2.0, version=0) == APPLIED
    assert shard.version == 1
    assert torch.allclose(shard.groups[0].members[0].tensor, first - 1.5)
    assert push(shard, 2, version=0) == STALE
    buffers = {m.name: m.tensor for group in shard.groups if not group.learned for m in group.members}
    assert buffers["1.num_batches_tracked"] == 3  # 1 + 2: a counter's moves add up
    assert torch.allclose(buffers["1.running_mean"], torch.tensor(1.5))  # a mean's are averaged


def test_an_optimizer_that_raises_is_shown_from_the_users_file_on():
    class Broken(torch.optim.SGD):
        def step(self):
            raise RuntimeError("no step today")

    shard = make_shard(lambda parameters: Broken(parameters, lr=1.0))
    with pytest.raises(user_model.UserError, match="no step today"):
        push(shard, 0)


def test_evaluation_sees_parameters_that_stand_still():
    shard = make_shard()
    shard.pin(1)
    before = values(shard)
    push(shard, 0)
    assert [bytes(tensor.data) for tensor in shard.read(1)[1]] == before != values(shard)
    shard.unpin(1)
    with pytest.raises(KeyError):
        shard.read(1)


# Checkpoints


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.1)


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_a_restored_shard_goes_on_as_the_one_that_was_saved(tmp_path, optimizer):
    shard, restored = make_shard(optimizer), make_shard(optimizer)
    for minibatch in range(5):
        push(shard, minibatch)
    checkpoints.save(tmp_path, shard.version, shard.state())
    state, broken = checkpoints.load(tmp_path)
    restored.restore(state)
    assert broken == []
    assert (restored.version, restored.applied()) == (5, shard.applied())
    assert push(restored, 4) == DUPLICATE
    for replica in (shard, restored):
        push(replica, 9, 0.25)
    assert values(restored) == values(shard)


def test_pending_gradients_are_not_in_a_checkpoint():
    shard = make_shard(grads_to_wait=3)
    push(shard, 0)
    push(shard, 1)
    assert shard.state()["applied"] == {0: []}
    assert push(shard, 1) == DUPLICATE


def test_a_broken_checkpoint_is_skipped_for_the_one_before(tmp_path):
    shard = make_shard()
    for minibatch in range(4):
        push(shard, minibatch)
        checkpoints.save(tmp_path, shard.version, shard.state())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "version-000000003.pt",
        "version-000000004.pt",
    ]
    newest = checkpoints.path_of(tmp_path, 4)
    content = newest.read_bytes()
    weights = values(shard)[0]
    assert weights in content
    newest.write_bytes(content.replace(weights, bytes(len(weights))))
    state, broken = checkpoints.load(tmp_path)
    assert (state["version"], broken) == (3, ["version-000000004.pt"])
    newest.write_bytes(content[:100])
    assert checkpoints.load(tmp_path)[0]["version"] == 3


def test_a_checkpoint_of_another_model_is_refused():
    (groups,) = shards.plan(nn.Linear(3, 3), 1)
    smaller = Shard(groups, sgd, grads_to_wait=1, staleness_bound=1)
    with pytest.raises(ValueError, match="another model, or of another number of servers"):
        make_shard().restore(smaller.state())


# The master's state


def test_the_newest_state_that_was_saved_counts(tmp_path):
    assert state_file.read(tmp_path / "nowhere") == (0, None)
    book = state_file.StateFile(tmp_path)
    for steps in (1, 2):
        book.save({"steps": steps})
    (tmp_path / "state-000002.json").write_text("")  # its master died at once
    assert state_file.read(tmp_path) == (1, {"steps": 2})


def test_on_a_full_volume_the_older_state_stays_and_a_later_save_succeeds(tmp_path, monkeypatch):
    book = state_file.StateFile(tmp_path)
    book.save({"steps": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(state_file.os, "fsync", full)
        book.save({"steps": 2})
    assert state_file.read(tmp_path) == (1, {"steps": 1})
    book.save({"steps": 2})
    assert state_file.read(tmp_path) == (1, {"steps": 2})


# The user's file, the settings, and what is generated


def test_a_model_file_without_a_function_or_that_raises_is_refused_in_its_own_words(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("def model(): ...\ndef loss(a, b): ...\ndef dataset(record): ...\n")
    with pytest.raises(user_model.UserError, match=r"does not define optimizer\(parameters\)"):
        user_model.load(JobSettings(str(path), "r", "s"))
    path.write_text("import torch\n\nsize = 1 / 0\n")
    with pytest.raises(user_model.UserError, match='(?s)model.py", line 3.*ZeroDivisionError') as raised:
        user_model.load(JobSettings(str(path), "r", "s"))
    assert "user_model.py" not in str(raised.value)


def test_settings_travel_as_text():
    settings = JobSettings("m.py", "r.npy", "s", workers=3, step_seconds=0.5)
    assert JobSettings.from_json(settings.to_json()) == settings


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools makes them")
def test_the_generated_code_is_that_of_the_protocol(tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE.parent}"]
    command += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command.append(str(PACKAGE / "protocol.proto"))
    subprocess.run(command, check=True)
    for path in (tmp_path / "parameter_server").iterdir():
        assert path.read_text() == (PACKAGE / path.name).read_text(), "make it anew, as protocol.proto says"


def run_python(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, cwd=TRAINERS, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_the_master_needs_neither_torch_nor_the_kubernetes_client():
    program = "import sys, parameter_server.master; print({'torch', 'kubernetes'} & set(sys.modules))"
    assert run_python(program).strip() == "set()"


PAGE_FAULTS = """
import resource, sys
from parameter_server import memory
if len(sys.argv) > 1:
    memory.keep_freed_memory()
bytes(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(b"x" * 8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_memory_freed_by_a_minibatch_is_reused_without_page_faults():
    assert int(run_python(PAGE_FAULTS, "keep")) * 3 < int(run_python(PAGE_FAULTS))
