"""Add two vectors on the GPU and compare with the CPU, in the words of NVIDIA's sample vectorAdd.

Stands in for the image ``nvidia/k8s/cuda-sample:vectoradd``, the usual proof that a pod has a GPU.
"""

import sys

ELEMENTS, BLOCK = 50000, 256


def main() -> int:
    """Add, compare, and return the exit status."""
    import torch

    sys.stdout.write(f"[Vector addition of {ELEMENTS} elements]\n")
    if not torch.cuda.is_available():
        sys.stderr.write(
            "Failed to allocate device vector A (error code no CUDA-capable device is detected)!\n"
        )
        return 1
    left, right = torch.rand(ELEMENTS), torch.rand(ELEMENTS)
    sys.stdout.write("Copy input data from the host memory to the CUDA device\n")
    blocks = -(-ELEMENTS // BLOCK)
    sys.stdout.write(f"CUDA kernel launch with {blocks} blocks of {BLOCK} threads\n")
    total = left.cuda() + right.cuda()
    sys.stdout.write("Copy output data from the CUDA device to the host memory\n")
    if not torch.allclose(total.cpu(), left + right, atol=1e-5):
        sys.stderr.write("Result verification failed!\n")
        return 1
    sys.stdout.write("Test PASSED\nDone\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
