"""Test a CIFAR-10 model with `evaluate`, under the name and with the flags and output of the EKS workshop.

    python3 /workspace/cifar10-model-test.py --model-file=/efs-shared/cifar10-model.pth \\
        /efs-shared/cifar-10-batches-py/
"""

import argparse
from pathlib import Path

import evaluate
import torch
import torch.distributed as dist


def main() -> None:
    """Load the model, read the test images, predict, report."""
    parser = argparse.ArgumentParser(description="Test a model of cifar10-model-train.py.")
    parser.add_argument("data", type=Path, help="the folder cifar-10-batches-py")
    parser.add_argument("--model-file", type=Path, required=True)
    settings = parser.parse_args()
    evaluate.init_distributed()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"reading {settings.data}/", flush=True)
    folder = settings.data.parent if settings.data.is_dir() else settings.data.parent / "cifar10"
    images, labels = (part.to(device) for part in evaluate.read_images(folder, train=False))
    print(f"loading model {settings.model_file}", flush=True)
    network, saved = evaluate.load(settings.model_file, device)
    result = evaluate.count(evaluate.predict(network, images), labels, saved["classes"])
    evaluate.emit("eval", **result)
    evaluate.print_accuracy(result)
    dist.destroy_process_group()
    print("Finished Testing", flush=True)


if __name__ == "__main__":
    main()
