"""Prints name==version for everything that kasync[test] needs, as installed here."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEADER = """\
# Made by `make lock`: what `make test` was last run with. To install exactly this:
#     pip install --constraint requirements-dev.lock --editable '.[test]'
"""


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """The names of all that this package with these extras needs, itself included."""
    try:
        requirements = [Requirement(line) for line in distribution(name).requires or []]
    except PackageNotFoundError:
        return
    yield name
    for requirement in requirements:
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({**default_environment(), "extra": extra})
            for extra in ("", *extras)
        )
        other = canonicalize_name(requirement.name)
        new = {(other, extra) for extra in ("", *requirement.extras)} - seen
        if wanted and new:
            seen |= new
            yield from needed(other, frozenset(requirement.extras), seen)


def lines() -> list[str]:
    found = set(needed("kasync", frozenset({"test"}), set())) - {"kasync"}
    return [f"{name}=={distribution(name).version.split('+')[0]}" for name in sorted(found)]


if __name__ == "__main__":
    print(HEADER + "\n".join(lines()))
