"""The network of `train.py`."""

from torch import nn


class Net(nn.Module):
    """Two convolutions and a linear layer, for images of 8 x 8 pixels and ten classes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(width * 64, 10),
        )

    def forward(self, images):
        return self.layers(images)
