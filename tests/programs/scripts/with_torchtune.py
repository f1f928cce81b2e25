"""Train a tiny Llama of torchtune's components with FSDP2 on CPUs; torchrun starts it."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torchtune.models.llama3 import llama3
from torchtune.training import shard_model

torch.distributed.init_process_group("gloo")
model = llama3(
    vocab_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    embed_dim=16,
    max_seq_len=16,
    intermediate_dim=32,
)
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
shard_model(
    model, shard_conditions=[lambda name, module: name == "layers.0"], cpu_offload=False, dp_mesh=mesh
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
words = torch.randint(0, 64, (4, 16))
for step in range(5):
    loss = torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")
torch.distributed.destroy_process_group()
