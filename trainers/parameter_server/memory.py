"""Let the C library keep the memory that a minibatch frees, because the next one needs as much.

By default glibc returns large blocks to the kernel when they are freed; each minibatch then takes its
activations, gradients and messages from new pages, which the kernel has to clear.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_BLOCK = 32 << 20  # glibc's maximum; larger blocks are still returned
LARGEST_REST = 1 << 30


def keep_freed() -> None:
    """Keep freed blocks in this process; nothing changes where the C library is not glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, LARGEST_REST)
