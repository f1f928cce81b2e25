"""Check gather, reduce, broadcast and pad of Hugging Face Accelerate by its own test; torchrun starts it."""

import os

os.environ["ACCELERATE_USE_CPU"] = "true"

from accelerate.test_utils.scripts.test_ops import main

main()
