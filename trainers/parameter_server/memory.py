"""Make the C library keep the memory that a minibatch frees for the next one.

By default glibc returns large freed blocks to the kernel, so that each minibatch uses new pages for its
activations, gradients and messages, which the kernel has to clear.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_BLOCK = 32 << 20  # glibc's maximum; larger blocks are still returned
MAX_FREE = 1 << 30


def keep_freed_memory() -> None:
    """Keep freed blocks in this process; do nothing if the C library is not glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, MAX_FREE)
