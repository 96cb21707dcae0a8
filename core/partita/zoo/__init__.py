"""The zoo: trained models from PyPI packages, with inputs to try them and answers to expect.

Example:
    >>> from partita import zoo
    >>> "ppocr-rec" in zoo.names()
    True
    >>> path = zoo.path("ppocr-rec")                            # doctest: +SKIP
    >>> sample = zoo.sample("ppocr-rec")                        # doctest: +SKIP
    >>> compiled = partita.Core().compile_model(path, "CPU")    # doctest: +SKIP
    >>> sample.answer(compiled_as_function).text                # doctest: +SKIP
    'One model, many devices'
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partita.zoo.manifest import Entry, entries, entry
from partita.zoo.sample import Answer, Infer, Sample
from partita.zoo.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Answer",
    "Entry",
    "Infer",
    "Sample",
    "Store",
    "entries",
    "entry",
    "names",
    "path",
    "sample",
]


def names() -> list[str]:
    """The names of all models of the zoo."""
    return list(entries())


def path(name: str, store: Store | None = None) -> Path:
    """The file of a model, verified; fetched from PyPI if it is not in the cache.

    Raises:
        ZooError: There is no such model, or it could not be fetched.
    """
    return (store or Store()).ensure([name])[name].model


def sample(name: str, store: Store | None = None, given: str | None = None) -> Sample:
    """A natural input of a zoo model with the answer to expect; fetches the model if need be.

    Args:
        name: The model.
        store: Where its files are kept.
        given: A picture, recording, file or text to take instead, as a path or in words.

    Raises:
        ZooError: As :func:`path`.
        InputError: What is given cannot be made an input of the model.
    """
    from partita.zoo.inputs import make_sample

    files = (store or Store()).ensure([name])[name]
    return make_sample(name, _metadata(files.model), files.extra, given)


def _metadata(model: Path) -> Mapping[str, str]:
    """The metadata of an ONNX file, where some models keep their labels; none of other files."""
    if model.suffix != ".onnx":
        return {}
    import onnx

    proto = onnx.load(model, load_external_data=False)
    return {entry.key: entry.value for entry in proto.metadata_props}
