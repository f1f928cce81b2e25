"""Fit a line with Hugging Face Accelerate; torchrun starts it."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
x = torch.linspace(-1, 1, 64).reshape(-1, 1)
model = torch.nn.Linear(1, 1)
parts = model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(x, 3 * x), batch_size=8)
model, optimizer, loader = accelerator.prepare(*parts)
for step, (inputs, targets) in enumerate(loader):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step} loss {loss.item():.4f} processes: {accelerator.num_processes}")
accelerator.save_state("state")
