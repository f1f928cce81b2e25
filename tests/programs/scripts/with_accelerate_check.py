"""Run what `accelerate test` runs; torchrun starts it."""

import os

os.environ["ACCELERATE_USE_CPU"] = "true"

from accelerate.test_utils.scripts.test_script import main

main()
