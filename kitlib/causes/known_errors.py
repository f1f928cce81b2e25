"""Errors that a program, torch, NCCL or the driver words in a way that hides what to do. Pure data.

Each was recorded: of PyTorch, NCCL, CUDA, etcd and the C library. The first that matches names the error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class KnownError:
    """An error, by its words.

    Attributes:
        kind: Its name in `docs/why.md`.
        words: A regular expression of its text.
        means: What it means, as evidence.
        fix: What to do.
        lasts: Whether it is one in the log of a rank that ended without a traceback, or still runs.
    """

    kind: str
    words: str
    means: str
    fix: str
    lasts: bool = False

    def matches(self, text: str) -> bool:
        return re.search(self.words, text[:LONGEST], re.IGNORECASE | re.DOTALL) is not None


LONGEST = 8000  # characters
# The first part of a path that is relative to the working directory, where what files= names is put.
_RELATIVE = re.compile(r"No such file or directory: '(?:\./)?(?!\.{1,2}/|/)([^'/\n]+)")
LAUNCH = "then kit.launch(…, replace=True)"
_DRIVER = "build the image for an older CUDA, or use nodes with a newer driver: nvidia-smi shows theirs"
_NETWORK = "NCCL_DEBUG=INFO shows the interface; set NCCL_SOCKET_IFNAME=eth0, and allow TCP between the pods"

KNOWN_ERRORS = (
    KnownError(
        "CudaOutOfMemory",
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory",
        "the GPU's memory is full, not the pod's",
        f"a smaller batch, gradient accumulation, bf16 or FSDP; {LAUNCH}",
    ),
    KnownError(
        "DriverTooOld",
        r"driver on your system is too old|CUDA driver version is insufficient|forward compatibility was"
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|system has unsupported display driver",
        "the image's CUDA is newer than the node's driver",
        _DRIVER,
    ),
    KnownError(
        "WrongArchitecture",
        r"no kernel image is available for execution",
        "this build of torch has no kernels for the node's GPU",
        "an image whose torch lists the GPU in torch.cuda.get_arch_list(), or other nodes",
    ),
    KnownError(
        "PipInstall",
        r"install packages due to an OSError: \[Errno (?:13|30)\]|error: externally-managed-environment",
        "pip may not write into the container's environment; local pods have this machine's, read-only",
        "pip install it here: local pods see it; elsewhere an image that has it, or pip install --target",
        lasts=True,
    ),
    KnownError(
        "NoGPU",
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver|no GPUs found|Torch not"
        r" compiled with CUDA enabled|invalid device ordinal|ProcessGroupNCCL is only supported"
        r"|Attempting to deserialize object on a CUDA device|at least one CUDA device|insufficient CUDA dev",
        "the pod sees fewer GPUs than the program uses",
        f'gpus=1 or more, or backend gloo and the CPU (launcher="python" without torchrun); {LAUNCH}',
    ),
    KnownError(
        "DuplicateGPU",
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group, gpus= one a process',
    ),
    KnownError(
        "SharedMemory",
        r"unable to (?:allocate|open|mmap|write)[^\n]*shared memory|bus error|insufficient shared memory"
        r"|No space left on device[^\n]*/dev/shm|/dev/shm/[^\n]*No space left|\(shm\)|posix_fallocate",
        "/dev/shm of the pod is full: data loader workers and NCCL exchange data there",
        "more memory=, fewer data loader workers, or num_workers=0",
        lasts=True,
    ),
    KnownError(
        "DataLoader",
        r"DataLoader worker \(pid.{0,40}\) (?:is killed by signal|exited unexpectedly)",
        "a process that loads data died, not the rank",
        "num_workers=0 shows its error; more memory= where a signal killed it",
    ),
    KnownError(
        "DiskFull",
        r"No space left on device|Errno 28|Disk quota exceeded|Errno 122",
        "the disk or the volume is full",
        'volume.files() shows what is on it; a larger volume: cluster.volume("name", size="20Gi")',
    ),
    KnownError(
        "OpenFiles",
        r"Too many open files|Errno 24\b",
        "the process has as many files and sockets open as it may",
        "close files, fewer data loader workers; torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    KnownError(
        "Threads",
        r"can't start new thread|Errno 11\b.*temporarily unavailable|fork: retry|pthread_create failed",
        "the pod, its user or its node has as many processes and threads as it may",
        "fewer data loader workers and threads: OMP_NUM_THREADS=1; trainyard doctor shows the limit",
    ),
    KnownError(
        "ReadOnly",
        r"Read-only file system|Errno 30",
        "the path is mounted read-only",
        "write to /workspace, or to a volume that the job mounts: volumes={…}",
    ),
    KnownError(
        "PermissionDenied",
        r"PermissionError|Errno 13",
        "the pod's user may not do this to the file",
        "write to /workspace or /tmp; or run_as_user=0: the pod's user is root, where that is allowed",
    ),
    KnownError(
        "PortTaken",
        r"EADDRINUSE|address already in use|failed to bind|server socket has failed to listen",
        "another process of the pod, or of the node, listens on MASTER_PORT",
        'another port: job.patch sets MASTER_PORT; in a pod of several programs, "--standalone" picks one',
    ),
    KnownError(
        "NameNotFound",
        r"Name or service not known|Temporary failure in name resolution|gai error|getaddrinfo"
        r"|Could not resolve host|hostname of the client socket cannot be retrieved|No address associated",
        "DNS has no such name, or does not answer: MASTER_ADDR is wrong, or its Service is missing",
        "a download wants internet, or a volume; else kubectl get endpoints: MASTER_ADDR is JOB-0.SERVICE",
    ),
    KnownError(
        "Backend",
        r"Distributed package doesn't have \w+ built in|Unknown c10d backend|No backend type associated",
        "this build of torch has no such backend",
        'init_process_group("gloo"), or "nccl" on nodes with GPUs and an image with CUDA',
    ),
    KnownError(
        "ModelMismatch",
        r"DDP expects same model across all ranks|verifies? param shape|params? shapes? .*inconsistent",
        "the model has other parameters on one rank than on another",
        "build the model alike on all ranks: no layer or size that depends on the rank or its data",
    ),
    KnownError(
        "ShapeMismatch",
        r"Received data size doesn't match expected|op\.preamble\.length|Detected mismatch between"
        r"|size of tensor [^\n]* mismatch across ranks|expects? tensors? (?:to be )?of the same size"
        r"|collective call is inconsistent|ncclInvalidUsage|invalid tensor (?:size|type) at index",
        "ranks passed tensors of different shapes or types to one collective, or called different ones",
        "print tensor.shape on each rank before it; TORCH_DISTRIBUTED_DEBUG=DETAIL names the collective",
    ),
    KnownError(
        "WorldSize",
        r"Default process group has not been initialized|world_size.*(?:expected|invalid|mismatch)"
        r"|rank (?:must be|\d+ is )[^\n]*world.?size|Invalid rank"
        r"|environment variable (?:RANK|WORLD_SIZE|MASTER)|Duplicate rank|Mismatched world size",
        "the ranks do not agree on RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT",
        "read them from the environment, which torchrun sets: init_process_group() without arguments",
    ),
    KnownError(
        "Etcd",
        r"etcd[^\n]*(?:Connection|lost|timed? ?out|refused|EtcdException)|EtcdConnectionFailed|EtcdWatch",
        "etcd, which keeps the rendezvous, does not answer",
        "kubectl get pods: is the store's pod there? rendezvous= another, or launch again",
    ),
    KnownError(
        "Rendezvous",
        r"RendezvousTimeoutError|timed out after \d+ seconds waiting for clients|RendezvousClosedError"
        r"|\d+/\d+ clients joined|minimum number of nodes|Timed out waiting for clients|DistStoreError",
        "fewer workers came to the rendezvous than it needs",
        "run.pods() shows which do not run; nodes= and min_nodes= no more than there is room for",
    ),
    KnownError(
        "NcclNetwork",
        r"ncclSystemError|ncclRemoteError|Bootstrap : no socket interface|socketStartConnect|NCCL WARN Call"
        r"|NET/(?:Socket|IB)[^\n]*(?:fail|error|WARN)|ncclInternalError",
        "NCCL has no way from one pod to another",
        _NETWORK,
    ),
    KnownError(
        "Timeout",
        r"collective operation timeout|Timed out waiting \d+ms for (?:recv|send)|monitoredBarrier"
        r"|wait timeout after \d+ms|Application timeout caused pair closure",
        "a rank waited in a collective that another never joined",
        "run.why() while it hangs names the rank; a collective in `if rank == 0:` is the usual reason",
    ),
    KnownError(
        "UnusedParameters",
        r"Expected to have finished reduction in the prior iteration",
        "a layer had no gradient on some rank",
        "DistributedDataParallel(…, find_unused_parameters=True), or use each layer in forward()",
    ),
    KnownError(
        "CudaAssert",
        r"device-side assert|Assertion [`'\"].*failed",
        "an index is out of range on the GPU, often a label beyond the number of classes",
        "run it on the CPU, gpus=0, which names the line; check labels and vocabulary",
    ),
    KnownError(
        "MissingModule",
        r"ModuleNotFoundError|ImportError|cannot open shared object file",
        "the image lacks a package, or a file is not beside the program",
        "put the module beside the program, or add the package: kit.build_image(requirements=…)",
    ),
    KnownError(
        "SyntaxError",
        r"SyntaxError|IndentationError|TabError",
        "the program is no Python of the image's version",
        f"correct that line; {LAUNCH}",
    ),
    KnownError(
        "Arguments",
        r"error: (?:unrecognized arguments|the following arguments are required|argument [^\n]+"
        r"|ambiguous option)|No such option|Missing (?:option|argument)|Got unexpected extra argument",
        "the program's command line is wrong",
        f"args={{…}} as the program's --help has them; {LAUNCH}",
        lasts=True,
    ),
    KnownError(
        "NoSuchFile",
        r"FileNotFoundError|No such file or directory|can't open file",
        "the file is not in the pod",
        "files=[…] beside the program, or volumes={…}; run.logs() shows the path",
        lasts=True,
    ),
    KnownError(
        "NaN",
        r"\bloss(?: is| became|[ :=]{1,3}) ?(?:nan|inf)\b|nan loss|Function '\w+' returned nan"
        r"|non-finite loss|NaN or Inf",
        "the loss is no number: the learning rate is too high, or the data has such values",
        "a lower learning rate, gradient clipping, float32; torch.autograd.set_detect_anomaly(True)",
    ),
)
# What shells say of a program that they do not find.
_NOT_FOUND = re.compile(
    r"^(?:(?:[\w./-]{1,80}: ){0,2}(?:line )?\d{1,6}: |(?:sh|bash|ash|dash): )?"
    r"([\w./+-]{1,80}): (?:command not found|not found)$"
)


def missing_program(lines: Sequence[str]) -> tuple[str, str]:
    """Find a program that a shell did not find, by the end of a log, and the line; empty for none."""
    matches = (_NOT_FOUND.match(line.strip()[:200]) for line in reversed(lines[-3:]))
    return next(((match[1], match[0]) for match in matches if match), ("", ""))


# Exit codes of a shell that could not start what it was to start.
BY_CODE = {
    126: KnownError(
        "NotExecutable",
        "",
        "exit code 126: a shell may not execute the command",
        "chmod +x, call it by its interpreter (python …, sh …), or an image for the node's architecture",
    ),
    127: KnownError(
        "EntryPointMissing",
        "",
        "exit code 127: a shell did not find the command",
        "correct the command, or use an image that has it",
    ),
}


def known(text: str, *, lasting: bool = False) -> KnownError | None:
    """Find what a text of an error says; with ``lasting`` of the errors that need no traceback."""
    errors = (error for error in KNOWN_ERRORS if error.lasts or not lasting)
    meaning = next((error for error in errors if error.matches(text)), None)
    if meaning and meaning.kind == "NoSuchFile" and (place := _RELATIVE.search(text[:LONGEST])):
        return replace(meaning, fix=meaning.fix.replace("…", f'"{place[1]}"', 1))
    return meaning
