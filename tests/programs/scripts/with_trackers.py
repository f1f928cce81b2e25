"""Fit a line, and log it to MLflow in a file, W&B offline and TensorBoard, by settings of an .env file."""

from pathlib import Path

import dotenv
import mlflow
import torch
import wandb
from torch.utils.tensorboard import SummaryWriter

Path(".env").write_text("WANDB_MODE=offline\nMLFLOW_TRACKING_URI=sqlite:///mlflow.db\n")
dotenv.load_dotenv(".env")
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(-1, 1)
if rank == 0:
    mlflow.set_experiment("line")
    mlflow.start_run()
    experiment, board = wandb.init(project="line"), SummaryWriter("board")
for step in range(5):
    loss = torch.nn.functional.mse_loss(model(x), 3 * x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        mlflow.log_metric("loss", loss.item(), step=step)
        experiment.log({"loss": loss.item()})
        board.add_scalar("loss", loss.item(), step)
        print(f"step {step} loss {loss.item():.4f}")
if rank == 0:
    mlflow.end_run()
    experiment.finish()
    board.close()
    print(f"mlflow runs: {len(mlflow.search_runs(experiment_names=['line']))}")
torch.distributed.destroy_process_group()
