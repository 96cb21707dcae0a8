"""The kit as pytest collects it: one test per check."""

from __future__ import annotations

import pytest

from partita_conformance.bench.checks import Check
from partita_conformance.expectations import ExpectationsError
from partita_conformance.pytest_plugin import session_of
from partita_conformance.runs.running import DECLINED, SKIPPED, UNSUPPORTED, XFAILED
from partita_conformance.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per check; a device that is absent or broken has one that says so."""
    session = session_of(metafunc.config)
    state, reason = session.target.presence()
    if state == "present":
        try:
            checks = session.checks()
        except ExpectationsError as error:
            raise pytest.UsageError(str(error)) from error
        parameters = [pytest.param(check, id=check.name) for check in checks]
    else:

        def explain(_: object) -> None:
            (pytest.skip if state == "absent" else pytest.fail)(reason)

        parameters = [pytest.param(Check(f"plugin/{state}", explain), id=f"plugin/{state}")]
    metafunc.parametrize("check", parameters)


def test_conforms(check: Check, request: pytest.FixtureRequest) -> None:
    """The device passes the check."""
    if check.name in ("plugin/absent", "plugin/broken"):
        check.run(None)  # type: ignore[arg-type]  # it only says why
    session: Session = request.getfixturevalue("conformance_session")
    outcome = session.run(check)
    if outcome.status in (DECLINED, SKIPPED, UNSUPPORTED):
        pytest.skip(f"{outcome.status}: {outcome.detail}")
    if outcome.status == XFAILED:
        pytest.xfail(outcome.detail)
    if outcome.bad:
        pytest.fail(f"{outcome.status}: {outcome.detail}", pytrace=False)
