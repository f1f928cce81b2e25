"""Where things lie on a volume, and what its listing says."""

import pytest

from kitlib.errors import BadInput
from kitlib.storage.copy import inside, listing, target


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a\nb", "a\0b", 3, None])
def test_a_path_that_leads_out_of_the_volume_is_refused(path):
    with pytest.raises(BadInput, match="no place on the volume"):
        inside(path)


@pytest.mark.parametrize(
    ("path", "place"), [("", ""), ("/", ""), ("/a//b/", "a/b"), ("./a", "a"), ("a b/-c", "a b/-c")]
)
def test_paths_begin_at_the_root_of_the_volume(path, place):
    assert inside(path) == place


@pytest.mark.parametrize(
    ("to", "place"), [("", "cat.png"), ("pets/", "pets/cat.png"), ("pets/tom.png", "pets/tom.png")]
)
def test_what_is_sent_keeps_its_name_unless_it_gets_another(to, place):
    assert target("cat.png", to) == place


def test_a_listing_leaves_out_what_is_being_copied():
    lines = [
        "directory\t4096\t0\t./train",
        "regular empty file\t0\t0\t./a\tb",
        "directory\t4096\t0\t./.trainyard-upload-volume-shared-x",
    ]
    shown = listing(lines, empty="nothing")
    assert [(each["name"], each["kind"], each["size"]) for each in shown] == [
        ("a\tb", "file", "0 B"),
        ("train", "directory", None),
    ]
