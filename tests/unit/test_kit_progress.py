"""A line of progress that counts is drawn as a bar as well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitlib.display import progress


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("Building: 709 of about 2,836 packages compiled, 2 min so far", 0.25),
        ("Download of etcd: 6 of 24 MB, 3 s left", 0.25),
        ("starting etcd", None),
        ("3 of 0 nodes", None),
        ("5 of 4 nodes", 1.0),
        ("1.2.3 of 4", None),
    ],
)
def test_a_count_is_a_share(text, done):
    assert progress.share(text) == done


@given(st.text("0123456789,. of"))
def test_every_text_has_a_share_or_none(text):
    done = progress.share(text)
    assert done is None or 0 <= done <= 1


def test_a_notebook_shows_a_bar_beside_the_words(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **options: shown.append(bundle))
    line = progress.NotebookProgress("cluster lab")
    line.update("Building: 709 of about 2,836 packages compiled")
    (bundle,) = shown
    assert '<progress value="0.250">' in bundle["text/html"]
    assert bundle["text/plain"] == "cluster lab: Building: 709 of about 2,836 packages compiled"


def test_a_terminal_shows_what_a_pod_writes_as_it_is(capsys):
    with progress.TerminalProgress("image [bold]a[/]") as line:
        line.update("1 of 2 [red]layers[/]")
        line.note("[link=x]a note[/]")
        line.done("[blink]2 layers")
    said = capsys.readouterr().err
    assert "image [bold]a[/]: [link=x]a note[/]" in said and "image [bold]a[/]: [blink]2 layers" in said
