"""``partita conformance``: tests a device with the conformance kit, and writes its report."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.arguments import Commands, add_command, positive_float
from partita.cli.output import Output
from partita.errors import PartitaError, PluginError
from partita.suggestions import guess

if TYPE_CHECKING:
    from partita_conformance.session import Session


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "conformance",
        run,
        "tests whether a device implements the plugin contract and computes correctly",
        [
            "partita conformance -d MYDEV --expectations mydev.toml --report out/",
            "partita conformance -d MYDEV --check 'request/*' --check 'random/Conv/*'",
            "partita conformance -d MYDEV --plugin mypackage.plugin:MyDevice   (not installed)",
        ],
    )
    parser.add_argument(
        "-d", "--device", required=True, metavar="DEVICE", help="the device, e.g. CPU or OPENCL.1"
    )
    parser.add_argument(
        "--plugin",
        default="",
        metavar="MODULE:CALLABLE",
        help="makes the plugin, if it is not installed",
    )
    parser.add_argument(
        "--expectations", type=Path, metavar="FILE", help="TOML: what may not pass, and why"
    )
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write JSON and HTML there")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only checks whose name matches, e.g. 'request/*' (repeatable)",
    )
    parser.add_argument("--draws", type=int, default=4, help="random models per operator (4)")
    parser.add_argument("--cuts", type=int, default=4, help="random cuts per network (4)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="cut this model too, e.g. 'zoo:magika', or 'zoo' for all that are in the cache"
        " (repeatable)",
    )
    parser.add_argument(
        "--timeout", type=positive_float, default=120, metavar="S", help="per check (120 s)"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="no worker process: for debuggers"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Makes the checks; returns 1 if one fails, or if the device is not there to be tested.

    Raises:
        PluginError: The expectations are wrong, or a pattern matches no check.
        PartitaError: The report is to go into a file.
        OSError: The report's folder cannot be made.
    """
    from partita_conformance.expectations import ExpectationsError
    from partita_conformance.reports.report import as_data

    start = time.perf_counter()
    try:
        session = _session(args)
        state, reason = session.target.presence()
        if state != "present":
            if args.json:
                out.json({"device": args.device, "state": state, "reason": reason})
            out.error(f"error: {args.device} is {state}, nothing was tested: {reason}")
            return 1
        if args.report is not None:  # that it cannot be written is told before hours of checks
            _make_folder(args.report)
        _run_checks(session, out)
    except ExpectationsError as error:
        raise PluginError(str(error)) from error
    if args.json:
        out.json(as_data(session.target, session.outcomes, time.perf_counter() - start))
    else:
        _print(session, out, time.perf_counter() - start)
    if args.report is not None:
        for path in session.write_report(args.report):
            out.note(f"wrote {path}")
    return 1 if any(outcome.bad for outcome in session.outcomes) else 0


def _session(args: argparse.Namespace) -> Session:
    from partita_conformance.bench.bench import Target
    from partita_conformance.expectations import Expectations
    from partita_conformance.runs.collect import Selection, model_names
    from partita_conformance.session import Session

    return Session(
        Target(args.device, args.plugin),
        Selection(tuple(args.check), args.draws, args.cuts, model_names(args.model)),
        Expectations.load(args.expectations) if args.expectations else Expectations(),
        isolate=not args.in_process,
        timeout_s=args.timeout,
    )


def _make_folder(folder: Path) -> None:
    """Makes the report's folder.

    Raises:
        PartitaError: It is a file.
        OSError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PartitaError(
            f"--report '{folder}' is to be a folder, and there is a file of that name or above it."
        ) from error


def _run_checks(session: Session, out: Output) -> None:
    from partita_conformance.runs.collect import suite_names

    checks = session.checks()
    for pattern in session.selection.patterns:
        if not any(fnmatchcase(check.name, pattern) for check in checks):
            raise PluginError(
                f"--check '{pattern}' matches no check of the kit. Names are SUITE/CHECK, e.g. "
                "'request/*'; a report ('--report FOLDER') lists them all. Suites are "
                f"{', '.join(suite_names())}.{guess(pattern.partition('/')[0], suite_names())}"
            )
    try:
        with out.progress(f"testing {session.target.device}", len(checks)) as advance:
            for done, check in enumerate(checks, start=1):
                session.run(check)
                advance(done)
    finally:
        session.close()


def _print(session: Session, out: Output, seconds: float) -> None:
    from partita_conformance.reports.claims import claims_of

    bad = [outcome for outcome in session.outcomes if outcome.bad]
    statuses = sorted({outcome.status for outcome in session.outcomes})
    counts = Counter((outcome.check.suite, outcome.status) for outcome in session.outcomes)
    suites = dict.fromkeys(outcome.check.suite for outcome in session.outcomes)
    rows = [[suite, *(counts[suite, status] for status in statuses)] for suite in suites]
    rows.append(["all", *(sum(counts[s, status] for s in suites) for status in statuses)])
    out.table(["suite", *statuses], rows)
    for outcome in bad:
        out.text(f"{outcome.status}  {outcome.check.name}", f"    {outcome.detail}")
    claims = claims_of(session.outcomes)
    verdict = f"{len(bad)} checks fail" if bad else claims.verdict()
    out.text("", *claims.lines(), f"{session.target.device}: {verdict} ({seconds:.0f} s)")
