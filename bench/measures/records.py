"""How fast well-kept formats give back a range of records: what the parameter server's workers do all day.

A task is a range ``[start, end)`` of records, drawn from anywhere in the file; each format writes the same
records once (a label's byte and the pixels of MNIST or CIFAR-10) and is asked for ranges of 4096, the same
ones in the same order, as a list of bytes. Opening is timed apart: every worker opens the file, and a worker
that comes late is waited for. The pages are in the machine's cache in all cases, so what is compared is the
libraries and not a disk.

The kit's format is NumPy's NPY, which needs no package that trainers do not have anyway. The others are
measured where their packages are installed, and are absent otherwise; docs/datasets.md has the choice.
"""

import importlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.errors import PeerAbsent
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

RANGE, OPENINGS = 4096, 20
RANGES, QUICK_RANGES = 60, 10
SHAPES = {"MNIST": (60_000, 785), "CIFAR-10": (50_000, 3073)}

Reader = Callable[[int, int], Sequence[bytes]]


@dataclass(frozen=True)
class Format:
    """One format: the package that it takes, and how it is written and opened."""

    package: str
    write: Callable[[Path, np.ndarray], None]
    open: Callable[[Path], Reader]


def measure(lab: Lab) -> list[Result]:
    """Write each dataset in each format, and read ranges of it in turns."""
    found = []
    for dataset, (count, size) in SHAPES.items():
        records = np.random.default_rng(0).integers(0, 256, (count, size), dtype=np.uint8)
        with tempfile.TemporaryDirectory(dir=lab.folder) as folder:
            found += _compare(lab, dataset, records, Path(folder))
    return found


def _compare(lab: Lab, dataset: str, records: np.ndarray, folder: Path) -> list[Result]:
    sides, opening, absent = {}, {}, {}
    for name, record_format in FORMATS.items():
        lab.report(f"{dataset} as {name}")
        try:
            path = folder / name.replace(" ", "-").lower()
            _write(record_format, path, records)
        except PeerAbsent as reason:
            absent[name] = str(reason)
            continue
        sides[name] = lambda record_format=record_format, path=path: _read(
            record_format.open(path), len(records), lab.quick
        )
        opening[name] = _opening(record_format, path)
        if [bytes(row) for row in records[5:9]] != list(record_format.open(path)(5, 9)):
            raise AssertionError(f"{name} gives back other records")
    samples = alternate(sides, lab.rounds)
    ours, *others = FORMATS
    return [
        Result(
            what=f"a record of {dataset}, in ranges of {RANGE}",
            unit="µs",
            ours=tuple(samples[ours]),
            peer=other,
            theirs=tuple(samples.get(other, ())),
            absent=absent.get(other, ""),
            limit=Limit(1.0),
            details={"open, ms": {name: seconds * 1e3 for name, seconds in opening.items()}},
        )
        for other in others
    ]


def _write(each: Format, path: Path, records: np.ndarray) -> None:
    try:
        importlib.import_module(each.package)
    except ImportError as error:
        raise PeerAbsent(f"{each.package} is not installed") from error
    each.write(path, records)


def _read(read: Reader, count: int, quick: bool) -> float:
    """Return the microseconds for a record."""
    dice, ranges = random.Random(0), QUICK_RANGES if quick else RANGES
    starts = [dice.randrange(count - RANGE) for _ in range(ranges)]
    began = time.perf_counter()
    for start in starts:
        got = read(start, start + RANGE)
        if len(got) != RANGE:
            raise AssertionError(f"{len(got)} records in place of {RANGE}")
    return (time.perf_counter() - began) / (ranges * RANGE) * 1e6


def _opening(each: Format, path: Path) -> float:
    """Return the seconds from the path to the first record, the package imported before."""
    taken = []
    for _ in range(OPENINGS):
        began = time.perf_counter()
        each.open(path)(0, 1)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


# The formats ------------------------------------------------------------------------------------------------


def _write_npy(path: Path, records: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, records.view(f"V{records.shape[1]}").ravel())


def _open_npy(path: Path) -> Reader:
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    return lambda start, end: rows[start:end].tolist()  # of raw bytes, void in NumPy's words, it makes bytes


def _write_arrow(path: Path, records: np.ndarray) -> None:
    import pyarrow

    table = pyarrow.table({"record": pyarrow.array([row.tobytes() for row in records])})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _open_arrow(path: Path) -> Reader:
    import pyarrow

    column = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()["record"]
    return lambda start, end: column.slice(start, end - start).to_pylist()


def _write_parquet(path: Path, records: np.ndarray) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"record": pyarrow.array([row.tobytes() for row in records])})
    pyarrow.parquet.write_table(table, path, row_group_size=RANGE, compression="none", use_dictionary=False)


def _open_parquet(path: Path) -> Reader:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path, memory_map=True)

    def read(start: int, end: int) -> list[bytes]:
        first, last = start // RANGE, (end - 1) // RANGE
        column = file.read_row_groups(list(range(first, last + 1)))["record"]
        return column.slice(start - first * RANGE, end - start).to_pylist()

    return read


def _write_lmdb(path: Path, records: np.ndarray) -> None:
    import lmdb

    base = lmdb.open(str(path), map_size=2 * records.nbytes + 2**26, sync=False)
    with base, base.begin(write=True) as transaction:
        for index, row in enumerate(records):
            transaction.put(index.to_bytes(8, "big"), row.tobytes(), append=True)


def _open_lmdb(path: Path) -> Reader:
    import lmdb

    base = lmdb.open(str(path), readonly=True, lock=False)

    def read(start: int, end: int) -> list[bytes]:
        with base.begin() as transaction, transaction.cursor() as cursor:
            cursor.set_key(start.to_bytes(8, "big"))
            values = cursor.iternext(keys=False)
            return [next(values) for _ in range(end - start)]

    return read


def _write_array_record(path: Path, records: np.ndarray) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:64,uncompressed")
    for row in records:
        writer.write(row.tobytes())
    writer.close()


def _open_array_record(path: Path) -> Reader:
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(str(path)).read


def _write_hdf5(path: Path, records: np.ndarray) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("records", data=records)


def _open_hdf5(path: Path) -> Reader:
    import h5py

    rows = h5py.File(path, "r")["records"]

    def read(start: int, end: int) -> list[bytes]:
        block, size = rows[start:end].tobytes(), rows.shape[1]
        return [block[at : at + size] for at in range(0, len(block), size)]

    return read


FORMATS = {  # ours first
    "NPY": Format("numpy", _write_npy, _open_npy),
    "Arrow IPC": Format("pyarrow", _write_arrow, _open_arrow),
    "Parquet": Format("pyarrow", _write_parquet, _open_parquet),
    "LMDB": Format("lmdb", _write_lmdb, _open_lmdb),
    "ArrayRecord": Format("array_record", _write_array_record, _open_array_record),
    "HDF5": Format("h5py", _write_hdf5, _open_hdf5),
}
