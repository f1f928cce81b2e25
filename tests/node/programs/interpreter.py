"""Print what a program can see of its interpreter and process."""

# ruff: noqa: PTH109, PTH119, PTH123, PTH208, SIM115
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import platform
import resource
import signal
import sys
import tempfile
import threading
import time


def stream(file):
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "closed")
    attributes = {name: getattr(file, name) for name in names}
    layers = [
        type(file).__name__,
        type(file.buffer).__name__,
        type(getattr(file.buffer, "raw", None)).__name__,
    ]
    return attributes | {"layers": layers, "interactive": file.isatty(), "descriptor": file.fileno()}


main = sys.modules["__main__"]
names = [name for name in sorted(vars(main)) if name.startswith("__")]
facts = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": [sys.executable, sys.prefix, sys.base_prefix, sys._base_executable],
    "flags": repr(sys.flags),
    "options": [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix],
    "path": sys.path,
    "main": {name: type(vars(main)[name]).__name__ for name in names},
    "file": __file__,
    "frame": repr(sys._getframe().f_back),
    "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
    "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "errors": [sys.exc_info(), hasattr(sys, "last_type"), hasattr(sys, "last_value")],
    "signals": {int(number): repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "umask": os.umask(0o22),
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "locale": [locale.setlocale(category) for category in range(6)],
    "encodings": [
        sys.getfilesystemencoding(),
        sys.getfilesystemencodeerrors(),
        locale.getpreferredencoding(),
    ],
    "opened": open(os.devnull).encoding,
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)],
    "threads": [
        threading.current_thread().name,
        threading.active_count(),
        len(os.listdir("/proc/self/task")),
    ],
    "main thread": threading.current_thread() is threading.main_thread(),
    "native id": threading.main_thread().native_id == os.getpid(),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
    "multiprocessing": [multiprocessing.current_process().name, multiprocessing.parent_process()],
    "logging": [logging.getLogger().level, logging.getLogger().handlers],
    "fault handler": faulthandler.is_enabled(),
    "temporary": tempfile.tempdir,
    "zone": time.tzname,
    "node": platform.node() == os.uname().nodename,
    "import": [type(finder).__name__ for finder in sys.meta_path],
    "hash": sys.hash_info.algorithm,
}
with open("/proc/self/cmdline") as line, open("/proc/self/environ") as block, open("/proc/self/comm") as comm:
    facts["proc"] = [line.read().split("\0"), block.read().split("\0"), comm.read()]
json.dump(facts, sys.stdout, indent=1, default=repr)
