"""Segment random images with MONAI's U-Net and DDP; torchrun starts it."""

import torch
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
network = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,))
model, criterion = DistributedDataParallel(network), DiceLoss(sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
images = torch.rand(2, 1, 32, 32)
for epoch in range(3):
    loss = criterion(model(images), (images > 0.5).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch + 1} average loss: {loss.item():.4f}")
torch.distributed.destroy_process_group()
