"""Workers and servers keep the memory that a minibatch frees."""

import os
import platform
import subprocess
import sys

import pytest

from .parameter_server_job import TRAINERS

PROGRAM = """
import resource, sys
from parameter_server import memory
if len(sys.argv) > 1:
    memory.keep_freed_memory()
bytes(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(b"x" * 8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*arguments: str) -> int:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    path = os.environ | {"PYTHONPATH": TRAINERS}
    return int(subprocess.run(command, env=path, capture_output=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_what_a_minibatch_frees_is_not_taken_from_the_kernel_again():
    assert page_faults("keep") * 3 < page_faults()
