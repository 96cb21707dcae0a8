"""What a plugin's author expects not to pass, and why: the TOML file of ``--expectations``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

SECTIONS = ("unsupported", "xfail", "drawn")
_WHERE = " where "
"""Between the patterns of a check's name and of its message, in a key of ``[drawn]``."""


class ExpectationsError(ValueError):
    """The file cannot be read, lacks a reason, or has a pattern that matches nothing."""


@dataclass(frozen=True)
class Expectations:
    """Patterns of check names, each with its reason.

    Attributes:
        unsupported: Checks that are not made: the device does not do this, for good.
        xfail: Checks that are made and must fail, for now; one that passes is an error.
        drawn: Failures of draws, whose numbers change when a draw is added, by what is drawn: keys
            are ``NAME where MESSAGE``, of patterns. What fails otherwise is an error.
    """

    unsupported: Mapping[str, str] = field(default_factory=dict)
    xfail: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Expectations:
        """Reads a file.

        Raises:
            ExpectationsError: It says what is wrong with which entry.
        """
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ExpectationsError(f"Cannot read expectations '{path}': {error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ExpectationsError(f"Expectations '{path}' are no TOML: {error}") from error
        for section, entries in data.items():
            if section not in SECTIONS or not isinstance(entries, dict):
                raise ExpectationsError(
                    f"Expectations '{path}' have '{section}'; there are the tables "
                    f"{' and '.join(f'[{name}]' for name in SECTIONS)}."
                )
            for pattern, reason in entries.items():
                if not isinstance(reason, str) or not reason.strip():
                    raise ExpectationsError(
                        f"Entry '{pattern}' of [{section}] in '{path}' needs a reason: "
                        f'"{pattern}" = "why"'
                    )
                if (section == "drawn") != (_WHERE in pattern):
                    raise ExpectationsError(
                        f"Entry '{pattern}' of [{section}] in '{path}': keys of [drawn], and of no "
                        f'other table, are "CHECK where MESSAGE".'
                    )
        return cls(data.get("unsupported", {}), data.get("xfail", {}), data.get("drawn", {}))

    def find(self, name: str) -> tuple[str, str] | None:
        """The section and reason for a check, or ``None`` if it is expected to pass."""
        for section, entries in zip(SECTIONS[:2], (self.unsupported, self.xfail), strict=True):
            for pattern, reason in entries.items():
                if fnmatchcase(name, pattern):
                    return section, reason
        return None

    def excuse(self, name: str, detail: str) -> str | None:
        """The reason that ``drawn`` has for a check that failed with a message, if any."""
        for entry, reason in self.drawn.items():
            check, _, message = entry.partition(_WHERE)
            if fnmatchcase(name, check) and fnmatchcase(detail, message):
                return reason
        return None

    def require_matches(self, names: Iterable[str]) -> None:
        """Makes sure that every pattern still matches a check.

        Raises:
            ExpectationsError: Names the patterns that match nothing.
        """
        known = list(names)
        idle = [
            pattern
            for pattern in (*self.unsupported, *self.xfail, *self._checks_of_draws())
            if not any(fnmatchcase(name, pattern) for name in known)
        ]
        if idle:
            raise ExpectationsError(
                f"No check matches {', '.join(repr(p) for p in idle)}; remove or correct the entry."
            )

    def _checks_of_draws(self) -> list[str]:
        return [entry.partition(_WHERE)[0] for entry in self.drawn]
