"""Set variables before the first import of torch, and print what torch makes of them."""

# ruff: noqa: E402
import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "2"

import torch
import torch.distributed as dist

print("debug level", dist.get_debug_level(), "threads", torch.get_num_threads(), flush=True)
