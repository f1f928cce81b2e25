"""Addresses and checksums of the datasets.

The SHA-256 checksums are those in the data loaders of Keras and TensorFlow Datasets. For the archive of
tiny-imagenet-200 there is only a commonly used MD5, because its authors published no checksum.
"""

from dataclasses import dataclass

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Download:
    """One file to download.

    Attributes:
        name: The file name, the same on all mirrors.
        size: In bytes.
        algorithm: ``sha256`` or ``md5``.
        checksum: In hexadecimal.
    """

    name: str
    size: int
    algorithm: str
    checksum: str


@dataclass(frozen=True)
class Source:
    """A dataset that must be downloaded.

    Attributes:
        mirrors: Addresses of folders that have the files; the first that answers is used.
        downloads: The files.
        room: Bytes that the download and the unpacked files need together.
    """

    mirrors: tuple[str, ...]
    downloads: tuple[Download, ...]
    room: int


SOURCES = {
    "mnist": Source(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        downloads=(
            Download(
                "train-images-idx3-ubyte.gz",
                9912422,
                "sha256",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Download(
                "train-labels-idx1-ubyte.gz",
                28881,
                "sha256",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            Download(
                "t10k-images-idx3-ubyte.gz",
                1648877,
                "sha256",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Download(
                "t10k-labels-idx1-ubyte.gz",
                4542,
                "sha256",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        room=70_000_000,
    ),
    "cifar10": Source(
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        downloads=(
            Download(
                "cifar-10-python.tar.gz",
                170498071,
                "sha256",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        room=360_000_000,
    ),
    "tiny-imagenet-200": Source(
        mirrors=("https://cs231n.stanford.edu/", "http://cs231n.stanford.edu/"),
        downloads=(Download("tiny-imagenet-200.zip", 248100043, "md5", "90528d7ca1a48142e341f4ef8d21d0de"),),
        room=800_000_000,  # 120,000 small files occupy whole blocks
    ),
}
