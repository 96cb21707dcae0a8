"""Names of models: a path, ``zoo:NAME``, ``light:NAME`` or ``builtin:NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import ModelNotFoundError, ZooError
from partita.suggestions import guess, nearest
from partita.zoo import builtin
from partita.zoo.sample import Sample
from partita.zoo.store import Store

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Named:
    """A model that a name stands for.

    Attributes:
        name: As the user wrote it.
        source: What ``Core.read_model`` takes.
        sample: Makes the model's natural input, or ``None`` if it has none.
        sample_of: Makes an input of a picture, recording, file or text, or ``None`` if only its
            ports tell what it takes.
    """

    name: str
    source: Path | onnx.ModelProto
    sample: Callable[[], Sample] | None = None
    sample_of: Callable[[str], Sample] | None = None


def is_name(text: str) -> bool:
    """Whether a text is a name with a prefix, and no path."""
    return text.partition(":")[0] in ("zoo", "light", "builtin") and ":" in text


def resolve(name: str, store: Store | None = None) -> Named:
    """Finds the model that a name stands for; fetches it if it is one of the zoo.

    Raises:
        ZooError: The prefix is known but the rest is not, or fetching failed.
    """
    prefix, _, rest = name.partition(":")
    if not is_name(name):
        return Named(name, _file(name))
    if prefix == "light":
        return Named(name, light_path(rest))
    if prefix == "builtin":
        own = builtin.model(rest)
        return Named(name, own, lambda: builtin.sample(rest), partial(builtin.sample, rest))
    from partita import zoo

    store = store or Store()
    sample = partial(zoo.sample, rest, store)
    return Named(name, zoo.path(rest, store), sample, sample)


def all_names() -> list[str]:
    """Every name with a prefix."""
    from partita import zoo

    several = {"zoo": zoo.names(), "builtin": builtin.names(), "light": light_names()}
    return [f"{prefix}:{name}" for prefix, names in several.items() for name in names]


def light_names() -> list[str]:
    """The topologies with synthetic weights that the installed ``onnx`` package carries."""
    return list(_light_files())


def light_path(name: str) -> Path:
    """The file of such a topology.

    Raises:
        ZooError: There is none of that name; lists those there are.
    """
    files = _light_files()
    if name not in files:
        raise ZooError(
            f"The installed onnx package has no topology '{name}'.{guess(name, files)} It has "
            f"{', '.join(files) or 'none'}."
        )
    return files[name]


def _file(name: str) -> Path:
    """The path that a text is.

    Raises:
        ModelNotFoundError: There is no such file, but a name that is like it.
    """
    path = Path(name)
    if not path.suffix and not path.exists():
        known = {one.partition(":")[2]: one for one in reversed(all_names())}
        near = nearest(name, known)
        if near is not None:
            raise ModelNotFoundError(
                f"Model file '{name}' does not exist. Did you mean '{known[near]}'?"
            )
    return path


def _light_files() -> dict[str, Path]:
    """Short name to file: ``light_bvlc_alexnet.onnx`` is ``alexnet``."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {
        path.stem.removeprefix("light_").removeprefix("bvlc_"): path
        for path in sorted(folder.glob("light_*.onnx"))
    }
