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
"""Train with parameter servers and dynamic sharding, the way of ElasticDL, in PyTorch.

A *master* cuts the records into tasks and hands them out; *workers* compute gradients; *servers* hold the
model, a shard each, and apply them. Any of them may die at any time. Each runs in a process of its own:

    python -m parameter_server.master --trainer model.py --records train.npy --state-dir state --servers 1
    python -m parameter_server.server --master localhost:50001 --index 0
    python -m parameter_server.worker --master localhost:50001 --index 0

with the folder that has this package (``trainers/``) on ``PYTHONPATH``. In a cluster the master starts the
other two itself (``--pods``). How it works, and what is lost when what dies: ``docs/parameter-server.md``.
Only ``pods`` speaks to Kubernetes, and only ``master`` imports it; the master does not import torch.
"""
