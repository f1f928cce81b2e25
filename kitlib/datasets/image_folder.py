"""A folder of images, one folder for each class, checked before it is uploaded."""

import io
from dataclasses import dataclass
from pathlib import Path

from kitlib.errors import BadInput
from kitlib.storage.tree import walk

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm"}
TRAIN, TEST = ("train",), ("val", "test", "validation")
SAMPLE, SIDE = 24, 64


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images.

    Attributes:
        path: The folder.
        classes: The names of its class folders, sorted, as `torchvision.datasets.ImageFolder` numbers them.
        images: Path and class of each image for training.
        test: Number of images for testing; 0 without a folder of their own.
    """

    path: Path
    classes: list[str]
    images: list[tuple[Path, str]]
    test: int

    @property
    def train(self) -> int:
        """Number of images for training."""
        return len(self.images)

    def sample(self) -> bytes:
        """Pack some images of all classes, scaled to one size, as an ``.npz`` file."""
        import numpy
        from PIL import Image

        step = max(1, len(self.images) // SAMPLE)
        chosen = self.images[::step][:SAMPLE]
        shown = []
        for path, _ in chosen:
            try:
                with Image.open(path) as image:
                    shown.append(numpy.asarray(image.convert("RGB").resize((SIDE, SIDE))))
            except (OSError, ValueError) as error:
                raise BadInput(
                    f"this image cannot be read: {error}", about=str(path), fix="fix or remove it"
                ) from error
        file = io.BytesIO()
        numpy.savez_compressed(
            file, images=numpy.stack(shown), labels=numpy.array([label for _, label in chosen])
        )
        return file.getvalue()


def read(path: Path) -> ImageFolder:
    """Read a folder of images; raise BadInput if it has none, or test classes without training images."""
    if not path.is_dir():
        raise BadInput("there is no such folder here", about=str(path), fix="give one that exists")
    train = next((path / part for part in TRAIN if (path / part).is_dir()), path)
    test = next((path / part for part in TEST if train != path and (path / part).is_dir()), None)
    by_class = _by_class(train)
    if not by_class:
        fix = f"let it be like {train.name}/cat/tom.jpg, {train.name}/dog/rex.jpg"
        raise BadInput("there are no images in folders of classes", about=str(train), fix=fix)
    tested = _by_class(test) if test else {}
    if unknown := sorted(set(tested) - set(by_class)):
        what = f"some test classes have no training images: {', '.join(unknown[:5])}"
        raise BadInput(what, about=str(test), fix="give both folders the same classes")
    images = [(path, name) for name, paths in by_class.items() for path in paths]
    return ImageFolder(path.absolute(), list(by_class), images, sum(map(len, tested.values())))


def _by_class(folder: Path) -> dict[str, list[Path]]:
    by_class = {
        place.name: [
            entry.source
            for entry in walk(place, skipped=[], links=False)
            if Path(entry.path).suffix.lower() in ENDINGS and entry.source.is_file()
        ]
        for place in sorted(folder.iterdir())
        if place.is_dir() and not place.name.startswith(".")
    }
    return {name: images for name, images in by_class.items() if images}
