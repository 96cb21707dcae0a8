"""Names of models: a path, ``zoo:NAME``, ``light:NAME`` or ``builtin:NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import ZooError
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
    """

    name: str
    source: Path | onnx.ModelProto
    sample: Callable[[], Sample] | None = None


def resolve(name: str, store: Store | None = None) -> Named:
    """Finds the model that a name stands for; fetches it if it is one of the zoo.

    Raises:
        ZooError: The prefix is known but the rest is not, or fetching failed.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in ("zoo", "light", "builtin"):
        return Named(name, Path(name))
    if prefix == "light":
        return Named(name, light_path(rest))
    if prefix == "builtin":
        return Named(name, builtin.model(rest), lambda: builtin.sample(rest))
    from partita import zoo

    store = store or Store()
    return Named(name, zoo.path(rest, store), lambda: zoo.sample(rest, store))


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
            f"The installed onnx package has no topology '{name}'; it has "
            f"{', '.join(files) or 'none'}."
        )
    return files[name]


def _light_files() -> dict[str, Path]:
    """Short name to file: ``light_bvlc_alexnet.onnx`` is ``alexnet``."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {
        path.stem.removeprefix("light_").removeprefix("bvlc_"): path
        for path in sorted(folder.glob("light_*.onnx"))
    }
