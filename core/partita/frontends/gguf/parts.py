"""Models that lie in several GGUF files, as llama.cpp's ``llama-gguf-split`` writes them.

The first part has the metadata. Each part says which of how many it is, and has some of the
tensors. Their names end in ``-00001-of-00003.gguf``.
"""

from __future__ import annotations

import re
from pathlib import Path

from partita.errors import ModelFormatError, ModelNotFoundError
from partita.frontends.gguf.container import GgufFile, GgufTensor
from partita.frontends.model_file import map_model

_NAME = re.compile(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)", re.DOTALL | re.IGNORECASE)

_MOST_PARTS = 1 << 9
"""Parts of a model; each is a file that stays open."""


def open_file(path: str | Path) -> GgufFile:
    """The file at a path, mapped into memory, with the tensors of its other parts if it is one.

    Raises:
        ModelNotFoundError: It does not exist, or a part that belongs to it.
        ModelFormatError: It cannot be read or is no sound GGUF file.
    """
    path = Path(path)
    return with_other_parts(GgufFile(map_model(path), f"'{path}'"), path)


def part_paths(path: Path) -> list[Path]:
    """The files of a model by the name of one of them, in order; a name of no part stands alone."""
    found = _NAME.fullmatch(path.name)
    if found is None or not 1 <= int(found[4]) <= _MOST_PARTS:
        return [path]
    count = int(found[4])
    return [path.with_name(f"{found[1]}{number:05}{found[3]}") for number in range(1, count + 1)]


def with_other_parts(file: GgufFile, path: Path | None) -> GgufFile:
    """A file as it is, or if it is a part, the first part with the tensors of all.

    Args:
        file: What was read.
        path: Where it lies; ``None`` if it came as bytes.

    Raises:
        ModelNotFoundError: Another part does not lie beside it.
        ModelFormatError: Parts do not belong together, or the file's name does not say which one
            it is.
    """
    count = _split(file, "count", 1)
    if count <= 1:
        return file
    paths = [] if path is None else part_paths(path)
    if len(paths) != count:
        raise ModelFormatError(
            f"{file.origin} is part {_split(file, 'no', 0) + 1} of {count} of a model. Others are "
            "found by their names: give the path of a file NAME-00001-of-"
            f"{count:05}.gguf with all parts in its folder, of which there are {_MOST_PARTS} at "
            "most; or join them by llama.cpp: llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf"
        )
    tensors: dict[str, GgufTensor] = {}
    parts = []
    for number, one in enumerate(paths):
        part = file if one == path else _opened(one, number, count)
        _require_place(part, number, count)
        parts.append(part)
    for part in parts:
        if twice := tensors.keys() & part.tensors.keys():
            raise ModelFormatError(f"{part.origin} has a tensor '{min(twice)}' of another part.")
        tensors |= part.tensors
    due = _split(parts[0], "tensors.count", len(tensors))
    if len(tensors) != due:
        raise ModelFormatError(
            f"{parts[0].origin} and the other {count - 1} parts have {len(tensors)} tensors; "
            f"expected {due}. Download them again."
        )
    return parts[0].with_tensors(tensors)


def _opened(path: Path, number: int, count: int) -> GgufFile:
    """The part at a path, the one with this number, from 0, of so many."""
    try:
        return GgufFile(map_model(path), f"'{path}'")
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"Part {number + 1} of {count} of the model is not there: {error}"
        ) from error


def _require_place(file: GgufFile, number: int, count: int) -> None:
    """Refuses a file that says to be another part than its name does."""
    told = _split(file, "no", 0), _split(file, "count", 1)
    if told != (number, count):
        raise ModelFormatError(
            f"{file.origin} says that it is part {told[0] + 1} of {told[1]}, and its name that it "
            f"is part {number + 1} of {count}."
        )


def _split(file: GgufFile, key: str, default: int) -> int:
    """An entry of the metadata about parts."""
    found = file.metadata.get(f"split.{key}", default)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ModelFormatError(
            f"{file.origin} has split.{key} {repr(found)[:60]}; expected a count."
        )
    return found
