"""What a local cluster's own Python processes are told: where a checkout lies, and no secret."""

import site
from pathlib import Path

from localkube.cluster import preparation

SOURCE = str(Path(preparation.__file__).resolve().parents[2])


def test_processes_of_a_checkout_find_it():
    assert preparation.python_environment()["PYTHONPATH"] == SOURCE


def test_what_is_installed_stays_where_pods_look_for_packages(monkeypatch):
    # The forkserver removes what PYTHONPATH names from pods' paths: they would miss torchvision and gloo.
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/usr/lib/python", SOURCE])
    assert "PYTHONPATH" not in preparation.python_environment()


def test_no_secret_of_the_users_is_handed_on(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in preparation.python_environment().values()
