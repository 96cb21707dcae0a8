"""Exported blobs for checks, and damaged ones that a device must refuse."""

from __future__ import annotations

import partita
from partita.errors import BlobError, CompileError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.judging.requirements import NotApplicableError, require, require_raises


def exported(compiled: partita.CompiledModel) -> bytes:
    """Its blob.

    Raises:
        NotApplicableError: The device cannot export, and says so with a PartitaError.
    """
    try:
        blob = compiled.export_model()
    except (CompileError, NotImplementedError, BlobError) as error:
        raise NotApplicableError(f"the device does not export: {error}") from error
    require(isinstance(blob, bytes), f"export_model gives {type(blob).__name__}, not bytes.")
    return blob


def require_refused(bench: Bench, blob: bytes, what: str) -> None:
    """Fails unless a blob is refused by an error of Partita's; ``what`` begins the message."""
    require_raises(PartitaError, lambda: bench.core.import_model(blob, bench.device), what)
