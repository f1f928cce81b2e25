"""Sum over the processes with JAX; each rank is a process of jax.distributed."""

import os

import jax
from jax.experimental import multihost_utils

jax.distributed.initialize(
    f"{os.environ['MASTER_ADDR']}:29700", int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
)
parts = multihost_utils.process_allgather(jax.numpy.float32(jax.process_index() + 1))
print(f"process {jax.process_index()} of {jax.process_count()}: sum {parts.sum()}")
