from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitlib import config
from kitlib.errors import BadInput
from kitlib.k8s import names
from localkube.controlplane import image_store
from localkube.errors import LocalClusterError
from localkube.paths import images_dir


@pytest.mark.parametrize("name", ["", "Lab", "a_b", "-a", "a-", "a.b", "ä", "x" * 64, "a b", "a\n", 7, None])
def test_a_name_is_a_dns_label_and_anything_else_is_refused_with_a_proposal(name):
    for label in ("a", "lab-1", "x" * 63):
        assert names.validate_name(label, kind="cluster") == label
    with pytest.raises(BadInput) as refused:
        names.validate_name(name, kind="cluster")
    assert refused.value.fix.startswith('`name="')


@given(st.text())
def test_a_unique_name_is_a_name_whatever_it_is_made_from(stem):
    name = names.unique(stem)
    assert names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME) == name


def test_labels_say_whose_a_run_is_and_when_it_may_go():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    labels = names.labels(run="digits", workshop="Autumn School!", lifetime=timedelta(hours=2), now=now)
    assert labels["trainyard/run"] == "digits"
    assert labels["trainyard/workshop"] == "autumn-school"
    assert labels["trainyard/expires"] == "20260102T050405Z"
    assert set(labels) == {f"trainyard/{name}" for name in ("kit", "run", "workshop", "owner", "expires")}


def test_a_user_without_a_line_in_passwd_has_a_label_and_is_told_what_to_export(monkeypatch, tmp_path):
    monkeypatch.setattr("os.getuid", lambda: 1_000_650_000)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert names.labels(run="digits")["trainyard/owner"] == "user-1000650000"
    for locate in (config.state_folder, config.cache_folder, images_dir):
        with pytest.raises((BadInput, LocalClusterError), match="neither HOME nor /etc/passwd"):
            locate()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert image_store.contents() == []  # nothing has to be compiled to see that a store is not there
