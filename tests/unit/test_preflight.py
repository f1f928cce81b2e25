"""How checks run before anything is paid for, and what they come to."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib.errors import KitError, PreflightFailed, Rejected
from trainyard_kit import cluster_checks
from trainyard_kit.checks import Level, Probe, failed, ok, run, warn
from trainyard_kit.cli.main import main

ABOUT = 'cluster "lab" in us-west-2'


def refuse():
    raise KitError("it may not be asked", about="quotas", fix="ask the administrator")


def test_all_that_fails_is_told_at_once_with_what_mends_each():
    report = run(
        [
            Probe("region", lambda: ok("region", "us-west-2 is enabled")),
            Probe("quota", lambda: failed("quota", "0 vCPUs", "https://quotas.example")),
            Probe("zones", lambda: [warn("zones", "one zone only", "another type"), ok("names", "free")]),
            Probe("type", lambda: failed("type", "there is no g4dn.xlarg", "g4dn.xlarge")),
        ],
        about=ABOUT,
    )
    assert not report.ok
    assert [check.level for check in report.checks] == [
        Level.OK,
        Level.FAILED,
        Level.WARN,
        Level.OK,
        Level.FAILED,
    ]
    with pytest.raises(PreflightFailed, match="2 problems prevent it") as error:
        report.raise_failures()
    assert "0 vCPUs" in error.value.what and "g4dn.xlarg" in error.value.what
    assert error.value.fix.splitlines() == ["https://quotas.example", "g4dn.xlarge"]
    assert "zones" in repr(report) and "<table>" in report._repr_html_()


def test_without_credentials_nothing_else_is_asked():
    report = run([Probe("credentials", refuse, blocking=True), Probe("quota", refuse)], about=ABOUT)
    assert [check.name for check in report.checks] == ["credentials"]


def test_an_optional_check_that_cannot_run_is_a_warning():
    report = run([Probe("quota", refuse, required=False)], about=ABOUT)
    assert report.ok and report.raise_failures() is report
    assert "could not be checked: it may not be asked" in report.checks[0].message
    assert report.checks[0].fix == "ask the administrator"


def test_a_provider_that_costs_nothing_has_nothing_to_check_and_doctor_says_so():
    assert kit.preflight("local").ok
    result = CliRunner().invoke(main, ["doctor", "--provider", "local"])
    assert result.exit_code == 0 and "costs nothing" in result.output
    wrong = CliRunner().invoke(main, ["doctor", "--provider", "azure"])
    assert wrong.exit_code == 1 and "there is no provider 'azure'" in wrong.output


@pytest.mark.parametrize(("status", "level"), [(503, "warn"), (404, "warn"), (403, "ok"), (0, "ok")])
def test_a_metrics_server_that_is_registered_and_does_not_answer_is_not_served(status, level):
    def raw(path):
        if path != "/apis" and status:
            raise Rejected("currently unable to handle the request", about=path, fix="-", status=status)
        return {"groups": [{"name": cluster_checks.METRICS}]}

    checks = cluster_checks._operators(SimpleNamespace(kube=SimpleNamespace(raw=raw)))
    levels = {check.name: check.level for check in checks}
    assert levels["metrics-server"] == level and levels["trainer"] == "warn"
