"""Classify the nodes of a random graph with PyTorch Geometric and DDP; torchrun starts it."""

import torch
import torch.nn.functional as F
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCN

torch.distributed.init_process_group("gloo")
graph = FakeDataset(num_graphs=1, avg_num_nodes=100, num_channels=8, num_classes=4, task="node")[0]
model = torch.nn.parallel.DistributedDataParallel(GCN(8, 16, 2, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 4):
    loss = F.cross_entropy(model(graph.x, graph.edge_index), graph.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"Epoch: {epoch:03d}, Loss: {loss.item():.4f}")
torch.distributed.destroy_process_group()
