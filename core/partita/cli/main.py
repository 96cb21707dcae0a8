"""The entry point: chooses the command, and turns errors into one line and an exit code.

Everything else is imported inside of :func:`main`, where an interrupt is told as one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib.machinery import ExtensionFileLoader

TYPE_CHECKING = False  # as in :mod:`partita`

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from partita.cli.output import Output

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOBODY_READS = 1, 130, 141

_LAST_SECONDS = 0.5
"""What an interrupted command may take to end, once it has put away what it had."""

_raised = 0  # interrupts that became exceptions
_postponed = -1  # how many had when one was put off

_EPILOG = """\
examples:
  partita demo                                    a real model on all devices of this machine
  partita devices                                 what there is
  partita query model.onnx -d HETERO:GPU,CPU      what would run where, and why
  partita benchmark model.onnx -d HETERO:GPU,CPU -pc

exit codes: 0 success, 1 an error (one line on stderr), 2 wrong usage, 130 interrupted,
141 stdout was closed by its reader
'partita COMMAND --help' explains a command.
"""


def build_parser(word: str = "") -> argparse.ArgumentParser:
    """The parser of the whole command line.

    Args:
        word: The first one of the line. If it names a command of this package, the parser knows no
            other: to import what all of them need takes longer than most commands.
    """
    import argparse
    import importlib

    import partita
    from partita.cli import commands
    from partita.cli.arguments import Parser
    from partita.devices.command_hooks import command_modules
    from partita.system.modules import import_modules, module_names

    parser = Parser(
        prog="partita",
        description="One model, many devices: runs neural networks (ONNX, OpenVINO IR, TFLite, "
        "GGUF)\non several devices of a machine at once.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"partita {partita.__version__}")
    parser.set_defaults(json=False, verbose=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    name = word.replace("-", "_")
    if name in module_names(commands):
        modules = [importlib.import_module(f"{commands.__name__}.{name}")]
    else:
        modules = [*import_modules(commands), *map(importlib.import_module, command_modules())]
    for module in modules:
        module.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        argv: The arguments; by default those of this process.

    Returns:
        The exit code. Wrong usage leaves through ``SystemExit(2)``, as argparse does.
    """
    is_process = argv is None
    handlers = signal.default_int_handler, signal.SIG_DFL  # Python's, and the console script's
    if is_process and signal.getsignal(signal.SIGINT) in handlers:
        signal.signal(signal.SIGINT, _end)  # in the background of a shell it stays ignored
        sys.unraisablehook = _interrupted_later
    if is_process:
        _occupy_standard_streams()
    _make_writable()
    if sys.stdout is None:
        sys.stderr.write(
            "partita: error: stdout is closed, and what a command finds is written there; "
            "redirect it to a file, a program or the null device instead\n"
        )
        return EXIT_ERROR
    try:
        return _guarded(argv)
    except BrokenPipeError:
        _drop_output()  # whoever read it has gone
        return EXIT_NOBODY_READS
    except OSError as error:  # of stdout alone: those of commands are said where they are run
        _drop_output()
        sys.stderr.write(f"partita: error: stdout cannot be written: {error}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        if is_process:  # it may end without a word from now on
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            # Python ends by the signal, not by our code, if the interrupt came inside of the last
            # text that was run; this one ends well.
            exec("")  # noqa: S102
            _end_soon()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stderr.write("partita: interrupted\n")
        return EXIT_INTERRUPTED


def _drop_output() -> None:
    """Lets Python flush at its end, without an error, what stdout does not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _guarded(argv: Sequence[str] | None) -> int:
    """Runs a command; what it raises for a user is a line on stderr."""
    import logging

    from partita.cli.completion import complete
    from partita.cli.output import Output, PrintableFormatter
    from partita.errors import PartitaError, in_words

    out = Output()
    try:
        complete(build_parser)
        words = sys.argv[1:] if argv is None else argv
        args = build_parser(*words[:1]).parse_args(words)
        out.as_json = args.json
        to_stderr = logging.StreamHandler(sys.stderr)
        to_stderr.setFormatter(PrintableFormatter("partita: %(levelname)s: %(message)s"))
        logging.basicConfig(
            level=logging.INFO if args.verbose else logging.WARNING, handlers=[to_stderr]
        )
        _require_working_folder()
        code = _run(args, out)
    except BrokenPipeError:
        raise
    except PartitaError as error:
        out.failure(error, in_words(error))
        return EXIT_ERROR
    except (OSError, MemoryError) as error:
        out.failure(error, str(error) or type(error).__name__)
        return EXIT_ERROR
    finally:
        out.flush()  # of --help too, which leaves by an exception
    return code


def _require_working_folder() -> None:
    """Sees to it that there is a working directory, which libraries ask for anywhere.

    Raises:
        PartitaError: It was removed, or may not be entered any more.
    """
    from pathlib import Path

    from partita.errors import PartitaError

    try:
        Path.cwd()
    except OSError as error:
        raise PartitaError(
            f"The working directory has been removed or cannot be reached ({error.strerror}); "
            "change to one that exists."
        ) from error


def _run(args: argparse.Namespace, out: Output) -> int:
    """Runs a command, which an interrupt ends by an exception: it may have things to put away."""
    if signal.getsignal(signal.SIGINT) is not _end:
        code: int = args.run(args, out)
        return code
    from partita.cli import unnoticed_interrupts

    signal.signal(signal.SIGINT, _raise)
    unnoticed_interrupts.watch(lambda: _raised, lambda: _end(signal.SIGINT, None))
    try:
        code = args.run(args, out)
    except Exception as error:
        if _is_of_an_interrupt(error):
            raise KeyboardInterrupt from error
        raise
    signal.signal(signal.SIGINT, _end)
    return code


def _is_of_an_interrupt(error: BaseException) -> bool:
    """Whether an error comes of an interrupt.

    Before 3.12, Python made a RuntimeError of one that came while it made a class.
    """
    from partita.errors import causes

    return any(isinstance(cause, KeyboardInterrupt) for cause in causes(error, meanwhile=True))


def _end(signum: int, frame: object) -> None:
    """Ends the process at an interrupt, while it only loads modules or has done its work.

    An exception would do worse: modules that are half imported, and callbacks inside of Python's
    importer, print it or take it for an error of their own.
    """
    with contextlib.suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"partita: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def _end_soon() -> None:
    """Has Python wait at its end for no thread whose kernel computes for long."""
    import threading

    timer = threading.Timer(_LAST_SECONDS, os._exit, (EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()


def _raise(signum: int, frame: FrameType | None) -> None:
    """Ends a command by an exception, and counts that it did.

    Where that would be lost, it comes again; and so it does while an extension module is loaded:
    some, as onnx's, crash when they are freed before they are whole.
    """
    global _raised
    while frame is not None:
        if frame.f_code is _interrupted_later.__code__:
            return
        if _loads_extension(frame):
            _postpone()
            return
        frame = frame.f_back
    _raised += 1
    raise KeyboardInterrupt


def _loads_extension(frame: FrameType) -> bool:
    """Whether it is of Python's importer, which loads a module of machine code."""
    if frame.f_code.co_name != "_load_unlocked":
        return False
    return isinstance(getattr(frame.f_locals.get("spec"), "loader", None), ExtensionFileLoader)


def _postpone() -> None:
    """Interrupts once more, unless that is on its way."""
    global _postponed
    import threading

    if _postponed != _raised:
        _postponed = _raised
        threading.Thread(target=_interrupt, args=(_raised,), daemon=True).start()


def _interrupted_later(ignored: Any) -> None:
    """Interrupts once more where Python can do nothing with the exception, as in callbacks."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)
        return
    _postpone()


def _interrupt(raised: int) -> None:
    """Interrupts the main thread, also one that sleeps where the system allows that.

    Again and again until it has noticed: a signal that comes just before it falls asleep does not
    wake it.
    """
    import threading
    import time

    main_thread = threading.main_thread()
    time.sleep(0.001)
    while _raised == raised and main_thread.is_alive():
        if hasattr(signal, "pthread_kill") and main_thread.ident is not None:
            signal.pthread_kill(main_thread.ident, signal.SIGINT)
        else:
            import _thread

            _thread.interrupt_main()
        time.sleep(0.1)


def _occupy_standard_streams() -> None:
    """Opens closed ones on nothing: the next file would get their number, and all messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _make_writable() -> None:
    """Lets messages go to a closed stderr, and results to an encoding that lacks some letters."""
    if sys.stderr is None:
        import io

        sys.stderr = io.StringIO()  # nobody reads it
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
