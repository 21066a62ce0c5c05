"""Components by name: the built-in ones, and anybody's own as `module:name` or `path/file.py:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kasync.errors import UserError, unknown

Offered = Mapping[str, Callable[[], Any]]  # what a component may ask for by the names of its parameters
_FILES: dict[Path, tuple[str, ModuleType]] = {}  # what was run, and the digest of its content


def is_own(name: object) -> bool:
    """Whether this names a component of the user's own."""
    return isinstance(name, str) and ":" in name


def short(name: str) -> str:
    """The name as people read it: of module:name what comes last."""
    return name.rpartition(":")[2] if is_own(name) else name


def find(name: str, kind: str, built_in: Mapping[str, Any]) -> Any:
    """The built-in component of this name, or one of the user's own."""
    if name in built_in:
        return built_in[name]
    if not is_own(name):
        raise unknown(kind, name, built_in, "or give your own as module:name")
    return load(name, kind)


def load(name: str, kind: str) -> Any:
    """The function, class or value `module:name`; the module may lie in the current folder, as for a script."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise UserError(f"{kind} {name!r}: write module:name, such as mine:fair for the function fair of mine.py.")
    module = _file(where, name, kind) if where.endswith(".py") else _module(where, name, kind)
    found: Any = module
    for place in attribute.split("."):
        if not hasattr(found, place):
            raise unknown(f"name in {where}", place, [each for each in vars(found) if not each.startswith("_")])
        found = getattr(found, place)
    if isinstance(found, ModuleType):
        raise UserError(f"{kind} {name!r} is a module: name a function that makes one.")
    return found


def made(kind: str, make: Callable[..., Any], given: Mapping[str, Any], offered: Offered) -> Any:
    """What `make` returns with the settings given and, of what is offered, what it asks for by name."""
    parameters = inspect.signature(make).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            raise unknown(f"setting of {kind}", name, parameters)
    values = {name: offered[name]() for name in parameters if name in offered and name not in given} | dict(given)
    missing = [name for name in required(make) if name not in values]
    if missing:
        raise UserError(f"{kind} needs {' and '.join(missing)}: give a value.")
    return make(**values)


def by_seed(
    kind: str, make: Callable[..., Any], seed: int, offered: Offered, given: Mapping[str, Any] | None = None
) -> Any:
    """What a function makes of the seed, whatever it calls it, and of what else it asks for by name."""
    asked = [name for name in required(make) if name not in offered and name not in (given or {})]
    if len(asked) == 1 and not isinstance(make, type):
        offered = {**offered, asked[0]: lambda: seed}
    return made(kind, make, given or {}, {**offered, "seed": lambda: seed})


def required(make: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    parameters = inspect.signature(make).parameters.values()
    asked = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    return [each.name for each in parameters if each.default is each.empty and each.kind in asked]


def _module(where: str, name: str, kind: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(where)
    except Exception as problem:
        raise _broken(where, name, kind, problem) from problem


def _file(where: str, name: str, kind: str) -> ModuleType:
    """The module in a file, run once as long as its content is the same."""
    path = Path(where).expanduser()
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{kind} {name!r}: {path} cannot be read ({problem.strerror}): name a Python file.") from None
    place, digest = path.resolve(), hashlib.sha256(content).hexdigest()
    if _FILES.get(place, ("", None))[0] != digest:
        title = f"_{path.stem}_py"  # the same wherever the file lies: it is part of what a class is
        spec = importlib.util.spec_from_file_location(title, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module  # dataclasses look their module up while it runs
        try:
            spec.loader.exec_module(module)
        except Exception as problem:
            raise _broken(where, name, kind, problem) from problem
        _FILES[place] = (digest, module)
    return _FILES[place][1]


def _broken(where: str, name: str, kind: str, problem: Exception) -> UserError:
    return UserError(f"{kind} {name!r}: {where} cannot be imported ({type(problem).__name__}: {problem}).")
