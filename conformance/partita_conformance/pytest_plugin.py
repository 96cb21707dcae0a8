"""The pytest plugin: ``pytest --pyargs partita_conformance --device MYDEV``.

Its options exist only if the command line names the package, so that ``--device`` stays free for
everybody else's tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from partita_conformance.session import Session

_NAME = "partita_conformance"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Adds the options if this run is about the kit."""
    if not any(_NAME in argument for argument in args):
        return
    group = parser.getgroup(_NAME, "conformance of a Partita device")
    group.addoption("--device", metavar="NAME", help="the device to test, e.g. CPU or OPENCL.1")
    group.addoption(
        "--plugin",
        default="",
        metavar="MODULE:CALLABLE",
        help="makes the plugin, if it is not installed",
    )
    group.addoption("--expectations", type=Path, metavar="FILE", help="TOML: what may not pass")
    group.addoption("--report", type=Path, metavar="FOLDER", help="where to write the report")
    group.addoption(
        "--check",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only checks whose name matches, e.g. 'request/*' (repeatable)",
    )
    group.addoption("--draws", type=int, default=4, help="random models per operator")
    group.addoption("--cuts", type=int, default=4, help="random cuts per network")
    group.addoption(
        "--model", action="append", default=[], metavar="NAME", help="cut it too, e.g. zoo:magika"
    )
    group.addoption("--check-timeout", type=float, default=120, metavar="S", help="per check")
    group.addoption("--in-process", action="store_true", help="no worker process: for debuggers")


def session_of(config: pytest.Config) -> Session:
    """The run that the options describe; one per pytest run.

    Raises:
        UsageError: No device is given, or the expectations are wrong.
    """
    from partita_conformance.bench.bench import Target
    from partita_conformance.expectations import Expectations, ExpectationsError
    from partita_conformance.runs.collect import Selection, model_names
    from partita_conformance.session import Session

    if SESSION_KEY in config.stash:
        return config.stash[SESSION_KEY]
    device = config.getoption("--device", default=None)
    if not device:
        raise pytest.UsageError(f"{_NAME} needs --device NAME, the device to test")
    path = config.getoption("--expectations")
    try:
        expectations = Expectations.load(path) if path else Expectations()
    except ExpectationsError as error:
        raise pytest.UsageError(str(error)) from error
    session = Session(
        Target(device, config.getoption("--plugin")),
        Selection(
            tuple(config.getoption("--check")),
            config.getoption("--draws"),
            config.getoption("--cuts"),
            model_names(config.getoption("--model")),
        ),
        expectations,
        isolate=not config.getoption("--in-process"),
        timeout_s=config.getoption("--check-timeout"),
    )
    config.stash[SESSION_KEY] = session
    return session


@pytest.fixture(scope="session")
def conformance_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The run; its report is written and its worker ended with the last test."""
    session = session_of(request.config)
    yield session
    session.close()
    folder = request.config.getoption("--report")
    if folder is not None and session.outcomes:
        session.write_report(folder)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints which operators and element types the device took and nobody could judge."""
    session = config.stash.get(SESSION_KEY, None)
    if session is None or not session.outcomes:
        return
    from partita_conformance.reports.claims import claims_of

    claims = claims_of(session.outcomes)
    terminalreporter.section(f"conformance of {session.target.device}")
    for line in (*claims.lines(), claims.verdict()):
        terminalreporter.write_line(line)


SESSION_KEY: pytest.StashKey[Session] = pytest.StashKey()
