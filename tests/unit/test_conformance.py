"""The conformance harness: its images' layers, and the tables of its document."""

import io
import subprocess
import sys
import tarfile

from ..conformance import images, report, suite

JUNIT = """<testsuites><testsuite><testcase name="[It] [sig-node] Pods run [Conformance]" status="passed"/>
<testcase name="[It] [sig-node] Pods stop [Conformance]" status="failed">
<failure message="" type="failed">timed out</failure></testcase>
<testcase name="[It] [sig-node] Pods skip [Conformance]" status="skipped">
<skipped message="skipped - no GPU"/></testcase>
<testcase name="[It] [sig-apps] left out" status="skipped"><skipped message="skipped"/></testcase>
<testcase name="[SynchronizedBeforeSuite]" status="passed"/></testsuite></testsuites>"""


def test_a_recipe_gives_the_same_bytes_twice_and_paths_of_merged_folders():
    recipe = {"bare": True, "text": {"etc/a": "A\n"}, "links": {"b": "etc/a"}, "directories": ["d"]}
    first, second = (images.layer(recipe, report=print).tar() for _ in range(2))
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert [(each.name, each.mode, each.uid) for each in tar] == [
            ("b", 0o644, 0),
            ("d", 0o1777, 0),
            ("etc/a", 0o644, 0),
        ]
    assert images._merged("./bin/sh") == "usr/bin/sh"
    assert images._merged("./lib") == "lib"
    assert images._merged("./usr/bin/sh") == "usr/bin/sh"


def test_an_image_leads_from_its_index_to_its_layers():
    made = images.Images(
        {"a": {"bare": True, "text": {"f": "x"}}, "b": {"from": "a", "cmd": ["sh"]}}, report=print
    )
    manifests, blobs = made.contents(made.make("b", "1"))
    assert len(manifests) == 2
    assert len(blobs) == 3  # two layers and the configuration
    assert {*manifests, *blobs} <= {*made.blobs}


def test_tests_that_a_filter_left_out_are_no_results(tmp_path):
    (tmp_path / "junit_01.xml").write_text(JUNIT)
    assert report.results(tmp_path) == {
        "[sig-node] Pods run": "passed",
        "[sig-node] Pods stop": "failed: timed out",
        "[sig-node] Pods skip": "skipped: skipped - no GPU",
    }


def test_every_test_that_did_not_pass_is_in_the_table_with_its_reason():
    runs = {
        ("root", "Conformance"): {"one": "passed", "two | x": "failed: a"},
        ("learner", "Conformance"): {"one": "failed: b", "two | x": "failed: c"},
    }
    reasons = [{"match": "two", "user": "a user", "why": "one id"}]
    assert report.table(runs, reasons).splitlines() == [
        "| Suite | Cluster of | Run | Passed | Not passed |",
        "| --- | --- | --- | --- | --- |",
        "| Conformance | root | 2 | 1 | 1 |",
        "| Conformance | a user | 2 | 0 | 2 |",
        "",
        "| Not passed | Cluster of | Why |",
        "| --- | --- | --- |",
        "| one | a user | not yet explained |",
        "| two \\| x | root | not yet explained |",
        "| two \\| x | a user | one id |",
    ]


def test_progress_counts_tests_that_are_done_and_that_failed(tmp_path):
    code = (
        "print('Will run 4 of 9 specs'); print('••'); print('• [FAILED] [1.2 seconds]'); print('•', end='')"
    )
    lines = []
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([sys.executable, "-X", "utf8", "-c", code], stdout=subprocess.PIPE) as process,
    ):
        suite._follow(process, log, "root", lines.append)
    assert lines[-1].startswith("root: 4 of 4 done, 1 failed")
