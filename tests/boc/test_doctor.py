"""``boc doctor``: what is missing or wrong is found, and each finding that is not fine has a next
step."""

from collections.abc import Iterator
from pathlib import Path

from boc import doctor
from boc.doctor import Finding
from tests.helpers import boc, run


def one(findings: Iterator[Finding] | list[Finding], about: str) -> Finding:
    [finding] = [finding for finding in findings if finding.about == about]
    return finding


def test_findings_have_next_step():
    findings = list(doctor.examine())
    for finding in findings:
        assert bool(finding.todo) == (finding.state != "ok"), finding
        assert finding.what.isprintable()
    assert one(findings, "packages").state == "ok"
    assert "numpy " in one(findings, "packages").what
    assert one(findings, "C modules").state in ("ok", "note")
    assert {f"extra {name}" for name in doctor.USES} <= {finding.about for finding in findings}


def test_missing_packages(monkeypatch):
    lines = [
        "numpy>=2",
        "nothing-like-it>=1",
        'tomli>=99; python_version < "3.0"',
        'click<99,>=8; extra == "web"',
        'ghost>=2; extra == "encoders"',
        'unchecked>=9; extra == "dev"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    findings = list(doctor.packages())
    core = one(findings, "packages")
    assert core.state == "problem"
    assert core.what == "all required packages: lacks nothing-like-it"
    assert core.todo == "pip install boc"
    assert one(findings, "extra web").state == "ok"
    encoders = one(findings, "extra encoders")
    assert (encoders.state, encoders.what) == (
        "note",
        f"{doctor.USES['encoders']}: lacks ghost",
    )
    assert encoders.todo == "pip install 'boc[encoders]'"
    assert not [finding for finding in findings if "unchecked" in finding.what]


def test_compiled_modules(monkeypatch):
    monkeypatch.setattr(
        doctor,
        "is_compiled",
        lambda name: not name.endswith("_search"),
    )
    [finding] = doctor.compiled_modules()
    assert (
        finding.state,
        "indexing.embedded._search" in finding.what,
    ) == ("note", True)
    assert "C compiler" in finding.todo


def test_origin_of_settings(here: Path, monkeypatch):
    (here / "boc.toml").write_text('at = "file:places"\n[search]\nk = 3\n')
    monkeypatch.setenv("BOC_DEVICE", "cpu")
    monkeypatch.setenv("BOC_PASSWORD", "hidden-word")
    result = run("doctor")
    for line in ("file boc.toml", "variables BOC_DEVICE, BOC_PASSWORD"):
        assert line in result.stdout
    assert "hidden-word" not in result.output
    monkeypatch.setenv("BOC_AT", "elastic+https://me:hidden-word@localhost:9200")
    result = boc("doctor")
    assert "BOC_PASSWORD" in result.stdout
    assert "hidden-word" not in result.output


def test_wrong_settings_file(here: Path):
    (here / "boc.toml").write_text("[search]\nkk = 3\n")
    result = boc("doctor")
    assert result.exit_code == 1
    assert "problem  settings: boc.toml: unknown 'kk'" in result.stdout
