"""Fit a line with DeepSpeed's ZeRO stage 1 on CPUs; torchrun starts it."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch

x = torch.linspace(-1, 1, 64).reshape(-1, 1)
settings = {
    "train_micro_batch_size_per_gpu": 64,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
model = torch.nn.Linear(1, 1)
deepspeed.init_distributed(dist_backend="gloo")
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for step in range(5):
    loss = torch.nn.functional.mse_loss(engine(x), 3 * x)
    engine.backward(loss)
    engine.step()
    print(f"step {step} loss {loss.item():.4f}")
print(f"rank {engine.global_rank} of {engine.world_size}")
