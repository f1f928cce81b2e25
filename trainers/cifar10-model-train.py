"""Train CIFAR-10 with `cifar10_ddp`, under the name and with the flags and output of the EKS workshop.

    torchrun --nproc_per_node=1 /workspace/cifar10-model-train.py --epochs=10 --batch-size=128 \\
        --model-file=/efs-shared/cifar10-model.pth /efs-shared/cifar-10-batches-py/
"""

import argparse
import time
from pathlib import Path

import cifar10_ddp as ddp
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

EVERY = 5  # steps between two lines
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def parse_settings() -> argparse.Namespace:
    """Parse the published flags."""
    parser = argparse.ArgumentParser(description="Train CIFAR-10 on all ranks.")
    parser.add_argument("data", type=Path, help="the folder cifar-10-batches-py")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="images per step and rank")
    parser.add_argument("--model-file", type=Path, default=Path("cifar10-model.pth"))
    parser.add_argument("--workers", type=int, default=0, help="accepted and ignored")
    return parser.parse_args()


def main() -> None:
    """Join, read, train, save."""
    settings, began = parse_settings(), time.perf_counter()
    ddp.init_distributed()
    device, group = ddp.choose_device()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(rank)
    print(f"reading {settings.data}/", flush=True)
    folder = settings.data.parent if settings.data.is_dir() else settings.data.parent / "cifar10"  # the kit's
    images, labels = (part.to(device) for part in ddp.read_images(folder, train=True))
    sampler = DistributedSampler[int](TensorDataset(labels))
    network = ddp.make_model("workshop", len(CLASSES)).to(device)
    model = DistributedDataParallel(network, process_group=group)
    rate = 0.1 * settings.batch_size * ranks / 128
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = settings.epochs * -(-len(sampler) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: ddp.one_cycle(step, steps))
    ddp.emit("start", train_images=len(labels), batch_size=settings.batch_size, steps=steps)
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        losses: list[float] = []
        for index, chosen in enumerate(torch.tensor(list(sampler)).split(settings.batch_size), 1):
            pixels = ddp.augment(images, chosen, generator, pad=2, hole=0)
            loss = nn.functional.cross_entropy(model(pixels), labels[chosen.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if index % EVERY == 0:
                mean = sum(losses[-EVERY:]) / EVERY
                print(f"[{epoch + 1}, {index:5d}] loss: {mean:.3f}", flush=True)
                step = epoch * (steps // settings.epochs) + index - 1
                ddp.emit("step", step=step, epoch=epoch, loss=round(mean, 5))
    print(f"saving model: {settings.model_file}", flush=True)
    ddp.average_statistics(network)
    if rank == 0:  # one writer: two would corrupt the file
        metadata = {"model": "workshop", "dataset": "cifar10", "classes": CLASSES, "epochs": settings.epochs}
        ddp.save(settings.model_file, metadata | {"weights": network.state_dict()})
    ddp.emit("end", steps=steps, seconds=round(time.perf_counter() - began, 3))
    dist.barrier()
    dist.destroy_process_group()
    print("Finished Training", flush=True)


if __name__ == "__main__":
    main()
