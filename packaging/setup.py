"""Tag the wheel by platform alone: a static program inside does not care which Python finds it."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of one platform, which ``tools/wheel.py`` names."""

    def get_tag(self):
        return "py3", "none", os.environ["TRAINYARD_PLATFORM"]


class WithPrograms(Distribution):
    """A distribution that is not pure Python."""

    def has_ext_modules(self):
        return True


setup(distclass=WithPrograms, cmdclass={"bdist_wheel": PlatformWheel})
