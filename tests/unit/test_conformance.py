"""The conformance harness: its images' layers, and the tables of its document."""

from ..conformance import report

JUNIT = """<testsuites><testsuite><testcase name="[It] [sig-node] Pods run [Conformance]" status="passed"/>
<testcase name="[It] [sig-node] Pods stop [Conformance]" status="failed">
<failure message="" type="failed">timed out</failure></testcase>
<testcase name="[It] [sig-node] Pods skip [Conformance]" status="skipped">
<skipped message="skipped - no GPU"/></testcase>
<testcase name="[It] [sig-apps] left out" status="skipped"><skipped message="skipped"/></testcase>
<testcase name="[SynchronizedBeforeSuite]" status="passed"/></testsuite></testsuites>"""


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
