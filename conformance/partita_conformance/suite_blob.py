"""Suite ``blob``: compiled models that are exported come back as they were."""

from __future__ import annotations

import tempfile

from partita.errors import BlobError, CompileError, PartitaError
from partita_conformance.bench import Bench
from partita_conformance.checks import NotApplicableError, check, require, require_raises
from partita_conformance.compare import compare


def _export(bench: Bench, kind: str = "plain") -> bytes:
    """An exported model.

    Raises:
        NotApplicableError: The device cannot export, and says so with a PartitaError.
    """
    try:
        blob = bench.compile(bench.sample(kind).proto).export_model()
    except (CompileError, NotImplementedError, BlobError) as error:
        raise NotApplicableError(f"the device does not export: {error}") from error
    require(isinstance(blob, bytes), f"export_model gives {type(blob).__name__}, not bytes.")
    return blob


@check("blob", values=True)
def comes_back(bench: Bench) -> None:
    """An exported model, imported by another core, has the ports and results that it had."""
    for kind in ("plain", "dynamic", "outputs"):
        sample = bench.sample(kind)
        blob = _export(bench, kind)
        restored = bench.new_core().import_model(blob, bench.device)
        original = bench.compile(sample.proto)
        for side in ("inputs", "outputs"):
            require(
                getattr(restored, side) == getattr(original, side),
                f"The {side} of '{sample.name}' are {getattr(restored, side)} after import.",
            )
        feeds = sample.feeds()
        compare(
            restored(feeds).to_tuple(),
            bench.expected(sample.proto, feeds),
            f"{sample.name} imported",
        )
        again = bench.core.import_model(restored.export_model(), bench.device)
        compare(
            again(feeds).to_tuple(), bench.expected(sample.proto, feeds), f"{sample.name}, twice"
        )


@check("blob")
def keeps_its_properties(bench: Bench) -> None:
    """Properties of the exported model are there after import."""
    sample = bench.sample("plain")
    _export(bench)
    blob = bench.compile(sample.proto, {"PERF_COUNT": True}).export_model()
    restored = bench.new_core().import_model(blob, bench.device)
    require(restored.get_property("PERF_COUNT") is True, "PERF_COUNT is lost by export and import.")


@check("blob", values=True)
def comes_out_of_the_cache(bench: Bench) -> None:
    """A model compiled again with CACHE_DIR comes out of the cache and computes what it did."""
    for kind in ("plain", "dynamic"):
        sample = bench.sample(kind)
        _export(bench, kind)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            config = {"CACHE_DIR": folder}
            bench.compile(sample.proto, config)
            cached = bench.new_core().compile_model(sample.proto, bench.device, config)
            require(
                cached.get_property("LOADED_FROM_CACHE") is True,
                "LOADED_FROM_CACHE is not True in the second compile with one CACHE_DIR.",
            )
            feeds = sample.feeds()
            compare(
                cached(feeds).to_tuple(),
                bench.expected(sample.proto, feeds),
                f"{sample.name} out of the cache",
            )


@check("blob")
def damage_is_noticed(bench: Bench) -> None:
    """Blobs that are empty, foreign, cut short or altered raise a PartitaError."""
    blob = _export(bench)
    middle = len(blob) // 2
    for what, damaged in {
        "an empty blob": b"",
        "foreign bytes": b"this is no model" * 9,
        "a blob cut short": blob[:middle],
        "a blob with bytes too many": blob + b"tail",
        "a blob with a byte altered": blob[:-9] + bytes([blob[-9] ^ 255]) + blob[-8:],
        "a blob altered in the middle": blob[:middle]
        + bytes([blob[middle] ^ 255])
        + blob[middle + 1 :],
    }.items():
        require_raises(
            PartitaError,
            lambda damaged=damaged: bench.core.import_model(damaged, bench.device),  # type: ignore[misc]  # mypy cannot type defaults of lambdas
            f"Importing {what}",
        )
