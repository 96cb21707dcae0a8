"""ONNX's shape inference in a process of its own, for models that come from strangers.

It is C++ that was not written for hostile input. Here it can end no process but its own, and has a
limit of time and, where the system knows one, of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from partita.errors import ModelFormatError

SECONDS = 120
"""How long it may take."""

BYTES = 8 << 30
"""How much memory it may take."""

_FAILED = 3


def inferred_apart(model: bytes) -> bytes:
    """What :func:`~partita.model.inference.followed_values.infer_following` makes of a model.

    Both are serialized.

    Raises:
        ValueError: It cannot be inferred; says why, as inference does.
        ModelFormatError: Inference ended its process, or took too long.
    """
    home = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", CHILD_CODE, home]
    try:
        done = subprocess.run(
            command, input=model, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelFormatError(
            f"Shapes of the model could not be inferred in another process: {error}"
        ) from error
    if done.returncode == _FAILED:
        raise ValueError(done.stderr.decode(errors="replace"))
    if done.returncode:
        raise ModelFormatError(
            f"ONNX's shape inference ended its process with code {done.returncode}: the model is "
            "damaged or hostile."
        )
    return done.stdout


def main() -> None:
    """Reads a model from standard input and writes the one with shapes to standard output."""
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import onnx
    from onnx import shape_inference

    from partita.model.inference.followed_values import infer_following

    model = onnx.ModelProto()
    model.ParseFromString(sys.stdin.buffer.read())
    try:
        result = infer_following(model)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        sys.stderr.write(str(error))
        sys.exit(_FAILED)
    sys.stdout.buffer.write(result.SerializeToString())


CHILD_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from partita.model.inference.inference_process import main; main()"
)
