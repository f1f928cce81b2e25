"""Which credentials win: the order is that of the clouds' libraries, and no secret is ever shown."""

import pytest

from kitlib.clusters import credentials

KEY = {"AWS_ACCESS_KEY_ID": "AKIATHEID", "AWS_SECRET_ACCESS_KEY": "the-secret"}


@pytest.fixture
def credentials_row(tmp_path):
    """Return a function that says what a provider would use in a home made by this test."""

    def say(provider, environment=None, **files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        rows = credentials(environment=environment or {}, home=tmp_path)
        return next(f"{row['would use']} | {row['next']}" for row in rows if row["provider"] == provider)

    return say


def test_an_empty_home_gets_the_command_for_each_provider(credentials_row):
    assert "no account" in credentials_row("local")
    assert "no kubeconfig" in credentials_row("existing")
    assert "aws configure sso" in credentials_row("eks")
    assert "gcloud auth application-default login" in credentials_row("gke")


def test_keys_in_the_environment_win_over_a_profile(credentials_row):
    credentials = "[lab]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = hidden\n"
    row = credentials_row("eks", KEY | {"AWS_PROFILE": "lab"}, dot_aws__credentials=credentials)
    assert row.startswith('AWS_ACCESS_KEY_ID from the environment; the profile "lab" is ignored')


def test_half_a_key_is_said(credentials_row):
    assert "without its secret" in credentials_row("eks", {"AWS_ACCESS_KEY_ID": "AKIATHEID"})


@pytest.mark.parametrize(
    ("environment", "files", "words"),
    [
        ({}, {"dot_aws__credentials": "[default]\naws_access_key_id = x\n"}, 'profile "default"'),
        ({"AWS_PROFILE": "lab"}, {"dot_aws__config": "[profile lab]\nsso_session = s\n"}, 'profile "lab"'),
        ({"AWS_PROFILE": "gone"}, {"dot_aws__config": "[profile lab]\n"}, "which is not configured"),
        ({}, {"dot_aws__credentials": "no ini file"}, "none were found"),
    ],
)
def test_a_profile_is_looked_for_in_both_files(credentials_row, environment, files, words):
    assert words in credentials_row("eks", environment, **files)


def test_googles_variable_wins_over_gclouds_file_and_must_name_a_file(credentials_row, tmp_path):
    default_file = {"dot_config__gcloud__application_default_credentials.json": "{}"}
    assert "gcloud's default credentials" in credentials_row("gke", **default_file)
    assert "no project" in credentials_row("gke", **default_file)
    project = {"dot_config__gcloud__configurations__config_default": "[core]\nproject = class-7\n"}
    assert 'project "class-7"' in credentials_row("gke", **default_file, **project)
    key = tmp_path / "key.json"
    assert "which does not exist" in credentials_row(
        "gke", {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}, **default_file
    )
    key.write_text("{}")
    row = credentials_row("gke", {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}, **default_file)
    assert row.startswith(f"GOOGLE_APPLICATION_CREDENTIALS: {key}")


def test_no_secret_is_shown(credentials_row, tmp_path):
    credentials_row("eks", dot_aws__credentials="[default]\naws_secret_access_key = hidden-1\n")
    shown = repr(credentials(environment=KEY, home=tmp_path)) + repr(
        credentials(environment={}, home=tmp_path)
    )
    assert not any(secret in shown for secret in ("hidden-1", "the-secret", "AKIATHEID"))
