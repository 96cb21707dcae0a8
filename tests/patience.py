"""Calls that may never return, for tests that are to fail then."""

from __future__ import annotations

import threading


def patiently(call, seconds=120):
    """What a call returns or raises, on a thread that may hang; then the test fails."""
    answer = []

    def work():
        try:
            answer.append(call())
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
            answer.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert answer, "it hangs"
    return answer[0]
