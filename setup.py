"""Put the manifests, and the programs that run in pods, into the wheel: as ``kitlib/data``.

A checkout has them beside the packages; `kitlib.config.DATA` finds either. All else is in ``pyproject.toml``.
"""

from setuptools import find_packages, setup

PACKAGES = ("kitlib*", "clouds*", "workshop*", "exercises*", "localkube*")
FOLDERS = {
    f"kitlib.data.{name}": name for name in ("datasets", "images", "manifests", "operators", "trainers")
}

setup(
    packages=[*find_packages(include=PACKAGES), *FOLDERS],
    package_dir=FOLDERS,
)
