"""Fit a line with DeepSpeed on CPUs; torchrun starts it."""

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(1, 1)
config = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(8):
    x = torch.rand(8, 1)
    loss = torch.nn.functional.mse_loss(engine(x), 3 * x)
    engine.backward(loss)
    engine.step()
    print(f"step {step} loss {loss.item():.4f} of {torch.distributed.get_world_size()}", flush=True)
engine.save_checkpoint("kept")
