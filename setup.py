"""Put the manifests, the programs that run in pods, and the course into the wheel: as ``kitlib/data``.

A checkout has them beside the packages; `kitlib.config.DATA` finds either. With ``TRAINYARD_RELEASE=1`` the
wheel requires the control plane's package of its version, which a checkout builds or finds by itself.
All else is in ``pyproject.toml``.
"""

import os

from setuptools import find_packages, setup
from setuptools.command.egg_info import egg_info

PACKAGES = ("kitlib*", "localkube*", "trainyard_kit*")
FOLDERS = {
    f"kitlib.data.{name}": name
    for name in ("docs", "images", "manifests", "notebooks", "programs", "trainers")
}
CONTROL_PLANE = (
    "trainyard-kit-controlplane=={}; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'"
)


class Metadata(egg_info):
    """Adds what a release requires, which pyproject.toml cannot say of a release alone."""

    def finalize_options(self) -> None:
        super().finalize_options()
        needed = CONTROL_PLANE.format(self.distribution.get_version())
        if os.environ.get("TRAINYARD_RELEASE") and needed not in self.distribution.install_requires:
            self.distribution.install_requires.append(needed)


setup(
    packages=[*find_packages(include=PACKAGES), *FOLDERS],
    package_dir=FOLDERS,
    cmdclass={"egg_info": Metadata},
)
