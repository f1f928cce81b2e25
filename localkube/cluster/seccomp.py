"""Compile the filter of pods' system calls (``seccomp.toml``) by libseccomp, for this machine.

It is compiled once, before the cluster starts: the runtime only loads it. Where libseccomp is missing, pods
run without a filter.

Source: https://man7.org/linux/man-pages/man3/seccomp_rule_add.3.html
"""

import base64
import ctypes
import errno
import os
import platform
import sys
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

LIBRARY = "libseccomp.so.2"
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LESS, EQUAL, MASKED_EQUAL = 2, 4, 7
OTHER_ARCHITECTURE, OPTIMIZE, BINARY_TREE = 2, 8, 2
ARCHITECTURES = ("x86_64", "aarch64")


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def compile_filter() -> str:
    """Compile the filter, in base64; empty where it cannot be had."""
    library = _load()
    if library is None or platform.machine() not in ARCHITECTURES:
        return ""
    table = tomllib.loads(resources.files(__package__).joinpath("seccomp.toml").read_text(encoding="utf-8"))
    context = ctypes.c_void_p(library.seccomp_init(ERRNO | errno.EPERM))
    try:
        # Those of i386, x32 and 32-bit arm: one number for many calls (socketcall, ipc) hides its arguments
        # from a filter, and libseccomp opens it with the first of them that is allowed.
        library.seccomp_attr_set(context, OTHER_ARCHITECTURE, ERRNO | errno.ENOSYS)
        library.seccomp_attr_set(context, OPTIMIZE, BINARY_TREE)
        for name in table["allowed"].split():
            _add(library, context, ALLOW, name)
        _add(library, context, ERRNO | errno.ENOSYS, table["not_implemented"])
        for rule in table["conditional"]:
            for comparison in _comparisons(rule):
                _add(library, context, ALLOW, rule["name"], comparison)
        return base64.b64encode(_export(library, context)).decode()
    finally:
        library.seccomp_release(context)


def _load() -> ctypes.CDLL | None:
    for place in (LIBRARY, str(Path(sys.prefix) / "lib" / LIBRARY)):
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        library.seccomp_init.restype = ctypes.c_void_p
        return library
    return None


def _comparisons(rule: dict[str, Any]) -> list[_Comparison]:
    argument = rule["argument"]
    if "lt" in rule:
        return [_Comparison(argument, LESS, rule["lt"], 0)]
    if "masked_eq" in rule:
        return [_Comparison(argument, MASKED_EQUAL, *rule["masked_eq"])]
    return [_Comparison(argument, EQUAL, value, 0) for value in rule["eq"]]


def _add(
    library: ctypes.CDLL, context: ctypes.c_void_p, action: int, name: str, *comparisons: _Comparison
) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number == -1:
        return
    conditions = (_Comparison * len(comparisons))(*comparisons)
    result = library.seccomp_rule_add_array(context, action, number, len(comparisons), conditions)
    if result:
        raise OSError(-result, f"seccomp_rule_add of {name}: {os.strerror(-result)}")


def _export(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    memory = os.memfd_create("seccomp")
    try:
        if result := library.seccomp_export_bpf(context, memory):
            raise OSError(-result, f"seccomp_export_bpf: {os.strerror(-result)}")
        return os.pread(memory, os.fstat(memory).st_size, 0)
    finally:
        os.close(memory)
