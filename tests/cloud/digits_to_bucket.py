# /// script
# requires-python = ">=3.11"
# dependencies = ["torch", "scikit-learn", "google-cloud-storage"]
# ///
"""Learn the digits on all ranks together, and let rank 0 leave the model in a bucket.

torchrun digits_to_bucket.py BUCKET OBJECT
"""

import io
import json
import sys
import time

import torch
from google.cloud import storage
from sklearn.datasets import load_digits
from torch import distributed, nn

BUCKET, OBJECT = sys.argv[1:]

distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[rank::ranks], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[rank::ranks])
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(50):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
if rank == 0:
    saved = io.BytesIO()
    torch.save(model.module.state_dict(), saved)
    storage.Client(project="none").bucket(BUCKET).blob(OBJECT).upload_from_string(saved.getvalue())
end = {"event": "end", "time": time.time(), "rank": rank, "world_size": ranks, "loss": loss.item()}
print(json.dumps(end), flush=True)
distributed.destroy_process_group()
