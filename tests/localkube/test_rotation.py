"""Logs of components: kept small while their writers go on."""

import stat

from localkube.supervisor import rotate


def test_a_log_that_has_grown_is_put_aside_and_its_writer_goes_on_at_the_beginning(tmp_path):
    log = tmp_path / "etcd.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 100)
        rotate(tmp_path, limit=200)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    aside = tmp_path / "etcd.log.1"
    assert aside.read_bytes() == b"old\n" * 50
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600


def test_a_small_log_is_left_alone(tmp_path):
    (tmp_path / "kubelet.log").write_bytes(b"x" * 200)
    rotate(tmp_path, limit=200)
    assert [path.name for path in tmp_path.iterdir()] == ["kubelet.log"]


def test_where_nothing_can_be_put_aside_the_log_is_emptied_all_the_same(tmp_path):
    log = tmp_path / "kubelet.log"
    log.write_bytes(b"x" * 300)
    (tmp_path / "kubelet.log.1").mkdir()
    rotate(tmp_path, limit=200)
    assert log.read_bytes() == b""
