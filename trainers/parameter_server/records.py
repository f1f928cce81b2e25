"""Read ranges of records from disk: an array of raw bytes in NumPy's format, memory-mapped.

``programs/dataset/records.py`` writes them and defines their content: a byte for the label, then the pixels.
A task of the master is a range ``[start, end)``, and a worker reads only that range. The model file's
``dataset(record)`` interprets a record.
"""

from pathlib import Path

import numpy as np


class Records:
    """The records of one file.

    Args:
        path: Path of a ``.npy`` file; or a dataset's part, ``/data/mnist/train`` for
            ``/data/mnist/records/train.npy``.

    Raises:
        SystemExit: It does not exist, or has no records.

    Example:
        >>> records = Records("/data/mnist/records/train.npy")
        >>> records.read(64, 128)[0][:1]
        b'\\x07'
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if path.suffix != ".npy":
            path = path.with_name("records") / f"{path.name}.npy"
        advice = f'kit.prepare_dataset("{path.parent.parent.name}", volume=…, records=True) creates them'
        try:
            self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise SystemExit(f"there are no records in {path}; {advice}") from error
        except (OSError, ValueError) as error:
            raise SystemExit(f"{path} cannot be read as records ({error}); {advice}") from error
        if self._rows.ndim != 1 or self._rows.dtype.kind != "V":
            raise SystemExit(f"{path} has {self._rows.dtype} in {self._rows.ndim} dimensions, no records")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, start: int, end: int) -> list[bytes]:
        """Return the records from ``start`` up to, but not including, ``end``.

        Raises:
            IndexError: The range exceeds the number of records.
        """
        if not 0 <= start <= end <= len(self):
            raise IndexError(f"records {start} to {end} of {len(self)}")
        return self._rows[start:end].tolist()
