"""The two front doors of the kit, command line and pytest, on devices good, bad and not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main
from partita_conformance.runs.collect import Selection, collect, suite_names

HERE = Path(__file__).parent
QUICK = ["-q", "-p", "no:hypothesispytest"]  # hypothesis takes as long to load as all else
SOME = ["--check", "plugin/*", "--check", "blob/[kt]*", "--check", "random/Relu/*"]


def command(capsys, *arguments):
    code = main(["conformance", *arguments])
    return code, capsys.readouterr().out


def under_pytest(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *QUICK, "--pyargs", "partita_conformance", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_report_that_cannot_be_written_is_told_of_before_the_checks(tmp_path, capsys):
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "out")
    assert main(["conformance", "-d", "REFERENCE", *SOME, "--report", folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is to be a folder, and there is a file" in captured.err


def test_device_that_passes(capsys, tmp_path):
    code, text = command(
        capsys, "-d", "GOOD", "--plugin", "good_device:Good", *SOME, "--report", str(tmp_path)
    )
    assert code == 0
    assert "GOOD: conforms" in text
    assert json.loads((tmp_path / "conformance.json").read_text())["device"] == "GOOD"
    assert "<title>" in (tmp_path / "conformance.html").read_text()


def test_device_that_fails(capsys):
    code, text = command(
        capsys, "-d", "BROKEN", "--plugin", "broken_form:HasNoFullName", *SOME, "--in-process"
    )
    assert code == 1
    assert "failed  plugin/describes_its_devices" in text
    assert "full_name is empty" in text


def test_a_pattern_that_matches_no_check_is_an_error(capsys):
    assert main(["conformance", "-d", "REFERENCE", "--check", "plugins/*", "--in-process"]) == 1
    message = capsys.readouterr().err
    assert "--check 'plugins/*' matches no check of the kit" in message
    assert "Suites are again, async, attributes, " in message
    assert message.endswith("Did you mean 'plugin'?\n")


def test_suites_are_those_of_all_checks():
    checks = collect(Selection(draws=1, cuts=1))
    assert suite_names() == sorted({check.suite for check in checks})


def test_json_is_the_report(capsys):
    code, text = command(capsys, "-d", "REFERENCE", *SOME, "--in-process", "--json")
    assert code == 0
    assert json.loads(text)["counts"]["passed"] > 10


def test_device_that_is_not_there(capsys):
    assert main(["conformance", "-d", "NOBODY", *SOME, "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["state"] == "absent"
    assert "error: NOBODY is absent, nothing was tested: There is no device 'NOB" in captured.err


def test_device_that_breaks_at_creation(capsys):
    argv = ["-d", "BROKEN", "--plugin", "broken_runs:BreaksAtCreation", *SOME]
    assert main(["conformance", *argv]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: BROKEN is broken" in captured.err
    assert "libdevice.so" in captured.err


def test_expectations_that_are_wrong(capsys, tmp_path):
    (tmp_path / "e.toml").write_text('[xfail]\n"plugin/*" = ""')
    assert main(["conformance", "-d", "CPU", "--expectations", str(tmp_path / "e.toml")]) == 1
    assert "needs a reason" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["random/Relu/99", "opertors/*"])
def test_pattern_that_matches_nothing(capsys, tmp_path, pattern):
    path = tmp_path / "e.toml"
    path.write_text(f'[unsupported]\n"plugin/*" = "why"\n"{pattern}" = "a slip of the pen"')
    assert main(["conformance", "-d", "REFERENCE", "--expectations", str(path)]) == 1
    assert f"No check matches '{pattern}'" in capsys.readouterr().err


def test_pattern_that_matches_nothing_under_pytest(tmp_path):
    (tmp_path / "e.toml").write_text('[xfail]\n"opertors/*" = "a slip of the pen"')
    done = under_pytest(tmp_path, "--device", "REFERENCE", "--expectations", "e.toml")
    assert done.returncode == 2
    assert "No check matches 'opertors/*'" in done.stdout


def test_crash_and_hang_cost_their_test_only_under_pytest(tmp_path):
    some = ["--check", "random/Exp/0", "--check", "random/Relu/0", "--check-timeout", "5"]
    for fault, text in (("Crashes", "crashed: the process ended"), ("Hangs", "timeout: no result")):
        device = ("--device", "BROKEN", "--plugin", f"broken_runs:{fault}")
        done = under_pytest(tmp_path, *device, *some)
        assert done.returncode == 1
        assert "1 failed, 1 passed" in done.stdout
        assert text in done.stdout


def test_pytest_runs_the_same_checks(tmp_path):
    done = under_pytest(
        tmp_path, "--device", "GOOD", "--plugin", "good_device:Good", *SOME, "--report", "out"
    )
    assert done.returncode == 0, done.stdout
    assert json.loads((tmp_path / "out" / "conformance.json").read_text())["device"] == "GOOD"


def test_pytest_fails_and_expects(tmp_path):
    common = ("--device", "BROKEN", "--plugin", "broken_form:InventsAKind", "--in-process")
    done = under_pytest(tmp_path, *common, "--check", "plugin/*")
    assert done.returncode == 1
    assert "toaster" in done.stdout
    assert "1 failed" in done.stdout
    (tmp_path / "e.toml").write_text('[xfail]\n"plugin/describes_*" = "kinds are to be agreed on"')
    done = under_pytest(tmp_path, *common, "--check", "plugin/*", "--expectations", "e.toml")
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--device", "NOBODY"), 0, "1 skipped"),
        (("--device", "BROKEN", "--plugin", "broken_runs:BreaksAtCreation"), 1, "libdevice.so"),
        ((), 2, "--device NAME"),
    ],
)
def test_pytest_on_devices_that_are_not(tmp_path, arguments, code, text):
    done = under_pytest(tmp_path, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout + done.stderr


def test_options_stay_out_of_other_runs(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='mine')\n"
    )
    (tmp_path / "test_own.py").write_text(
        "def test_own(request):\n    assert request.config.getoption('--device') == 'mine'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
