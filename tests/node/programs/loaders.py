"""Use torch as trainers do: threads, worker processes, a seed, defaults of a fresh interpreter."""

# ruff: noqa: PTH109, PTH119, PTH123, PTH208, SIM115
import os
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def threads():
    return torch.get_num_threads(), torch.get_num_interop_threads(), len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    print(threads())
    thread = threading.Thread(target=lambda: print("in a thread", torch.get_num_threads()))
    thread.start()
    thread.join()
    print(torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
    data = TensorDataset(torch.arange(40, dtype=torch.float32).reshape(20, 2))
    for method in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=method)
        print(method, [batch.sum().item() for (batch,) in loader])
    torch.manual_seed(1)
    np.random.seed(1)
    model = torch.nn.Linear(64, 64)
    loss = (model(torch.randn(128, 64)) ** 2).mean()
    loss.backward()
    print(loss.item(), model.weight.grad.sum().item(), np.random.rand())
    print(
        (np.ones((300, 300)) @ np.ones((300, 300))).sum(), (torch.ones(300, 300) @ torch.ones(300, 300)).sum()
    )
