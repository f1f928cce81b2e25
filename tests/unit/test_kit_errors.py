import pytest

from kitlib import errors
from kitlib.errors import Interrupted, KitError, Rejected, RunFailed
from kitlib.refusals import rejected


def test_an_error_says_what_failed_on_which_object_and_what_to_try():
    error = KitError("it is gone", about='cluster "lab"', fix="make it again")
    assert str(error) == 'it is gone\n  about: cluster "lab"\n  try:   make it again'


def test_a_notebook_shows_an_error_in_a_few_lines_without_a_traceback():
    error = RunFailed(
        "rank 2 failed first: ValueError: no", about="run", fix="mend it", detail="Traceback\n  x\n"
    )
    assert error._render_traceback_() == [
        "RunFailed: rank 2 failed first: ValueError: no\n  about: run\n  try:   mend it\n\nTraceback\n  x"
    ]


def test_every_error_of_the_kit_is_one_class_to_catch():
    found = [each for each in vars(errors).values() if isinstance(each, type) and each is not KitError]
    assert all(issubclass(each, KitError) for each in found)


def test_an_interruption_ends_a_notebooks_cell_as_ctrl_c_does():
    with pytest.raises(KeyboardInterrupt):
        raise Interrupted("stopped waiting", about="run", fix="go on")


@pytest.mark.parametrize(
    ("status", "body", "what", "fix"),
    [
        (
            409,
            b'{"reason": "AlreadyExists", "message": "jobs \\"a\\" already exists"}',
            "already exists",
            "name",
        ),
        (403, b'{"reason": "Forbidden", "message": "may not"}', "may not", "administrator"),
        (502, b"<html>Bad Gateway</html>", "Bad Gateway", "try again"),
        (500, b"", "HTTP status 500", "try again"),
        (401, b"[]", "[]", "kubeconfig"),
    ],
)
def test_the_api_servers_words_are_kept_and_a_remedy_added(status, body, what, fix):
    error = rejected(status, body, about="Job")
    assert isinstance(error, Rejected)
    assert what in error.what
    assert fix in error.fix
    assert error.status == status
