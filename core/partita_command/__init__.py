"""The console script, which an interrupt ends without a word while the framework is imported.

A package of its own, and of one file, because all that is imported before it ends by a traceback.
"""

import _signal  # type: ignore[import-not-found]  # behind module signal, which imports others

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until main tells of it


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    from partita.cli.main import main as run

    return run()
