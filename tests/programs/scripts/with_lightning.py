"""Fit a line with Lightning; torchrun starts it."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


x = torch.linspace(-1, 1, 64).reshape(-1, 1)
trainer = L.Trainer(max_epochs=2, num_nodes=2, devices=1, accelerator="cpu", log_every_n_steps=1)
trainer.fit(Line(), DataLoader(TensorDataset(x, 3 * x), batch_size=8))
trainer.save_checkpoint("line.ckpt")
