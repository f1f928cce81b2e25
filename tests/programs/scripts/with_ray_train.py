"""Fit a line with Ray Train: two workers that Ray starts in this pod."""

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train() -> None:
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    for step in range(5):
        loss = torch.nn.functional.mse_loss(model(x), 3 * x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ray.train.report({"step": step, "loss": loss.item()})
    print(f"loss {loss.item():.4f}, world size {torch.distributed.get_world_size()}")


ray.init(num_cpus=2, include_dashboard=False)
print(TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit().metrics)
