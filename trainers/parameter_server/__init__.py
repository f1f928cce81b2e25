# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "grpcio>=1.85",
#     "kubernetes>=36,<37",
#     "numpy>=2.4",
#     "protobuf>=7.36",
#     "torch>=2.15",
#     "urllib3>=2.8",
# ]
# ///
"""Parameter servers with dynamic sharding, after the design of ElasticDL, in PyTorch.

A *master* divides the records into tasks and assigns them; *workers* compute gradients; *servers* each hold a
shard of the model and apply them. Any of them may die at any time. Each runs in a separate process:

    python -m parameter_server.master --trainer model.py --records train.npy --state-dir state --servers 1
    python -m parameter_server.server --master localhost:50001 --index 0
    python -m parameter_server.worker --master localhost:50001 --index 0

with the folder of this package (``trainers/``) on ``PYTHONPATH``. In a cluster the master starts the other
two itself (``--pods``). ``docs/parameter-server.md`` describes the design and the handling of failures. Only
``pods`` uses the Kubernetes API, and only ``master`` imports it; the master does not import torch.
"""
