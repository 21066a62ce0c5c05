"""One fingerprint of everything that makes a run's numbers: the same in another process, different for another formula.

`describe` turns a thing into text, by its content and never by its address; `of` makes a short digest of the text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import logging
import pathlib
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kasync.errors import UserError

LENGTH = 16  # hexadecimal digits of a digest


def of(*things: Any) -> str:
    """A digest of 16 hexadecimal digits."""
    return _hash("|".join(describe(thing) for thing in things))


def describe(thing: Any) -> str:
    """The thing as text: values as they are, arrays and functions by digests of their content."""
    return _describe(thing, ())


def versions() -> str:
    """The versions of the libraries that decide about bits."""
    return f"torch {torch.__version__}, numpy {np.__version__}"


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:LENGTH]


def _describe(thing: Any, path: tuple[int, ...]) -> str:
    """`path` holds the containers and functions on the way here: one that comes again is not followed again."""
    if thing is None or isinstance(thing, bool | int | str | bytes | complex):
        return repr(thing)
    if isinstance(thing, float):
        return repr(float(thing))
    if id(thing) in path:
        return f"<again {len(path) - path.index(id(thing))} up>"
    inner = (*path, id(thing))
    for kind, text in _KINDS:
        if isinstance(thing, kind):
            return text(thing, inner)
    own = getattr(thing, "__fingerprint__", None)
    if own is not None and not isinstance(thing, type):
        return f"{_name(type(thing))}({_describe(own() if callable(own) else own, inner)})"
    if isinstance(thing, type):
        return _of_class(thing, inner)
    if dataclasses.is_dataclass(thing):
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.compare}
        return f"{_of_class(type(thing), inner)}({_of_mapping(fields, inner)})"
    return _of_object(thing, inner)


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _of_array(array: np.ndarray, path: tuple[int, ...]) -> str:
    if array.dtype == object:
        return f"array({_of_sequence(array.tolist(), path)})"
    return f"array({array.dtype} {list(array.shape)} {_hash(np.ascontiguousarray(array).tobytes())})"


def _of_tensor(tensor: Tensor, path: tuple[int, ...]) -> str:
    held = tensor.detach().cpu().contiguous()
    content = held.reshape(-1).view(torch.uint8).numpy().tobytes()  # numpy knows no bfloat16
    return f"tensor({held.dtype} {list(held.shape)} {_hash(content)})"


def _of_sequence(things: Iterable[Any], path: tuple[int, ...]) -> str:
    return "[" + ", ".join(_describe(each, path) for each in things) + "]"


def _of_set(things: Set[Any], path: tuple[int, ...]) -> str:
    return "{" + ", ".join(sorted(_describe(each, path) for each in things)) + "}"


def _of_mapping(things: Mapping[Any, Any], path: tuple[int, ...]) -> str:
    texts = sorted(f"{_describe(key, path)}: {_describe(value, path)}" for key, value in things.items())
    return "{" + ", ".join(texts) + "}"


def _of_module(module: nn.Module, path: tuple[int, ...]) -> str:
    """Structure and numbers: ReLU -> Tanh is another model, and so is another start or something frozen."""
    named = {name: (value, value.requires_grad) for name, value in module.named_parameters(remove_duplicate=False)}
    tied = [[name for name, (other, _) in named.items() if other is value] for value, _ in named.values()]
    tensors = {name: f"{_describe(value, path)} {grad}" for name, (value, grad) in named.items()}
    buffers = {name: _describe(value, path) for name, value in module.named_buffers()}
    parts = {name: _settings_of(each, path) for name, each in module.named_modules()}
    return f"module({parts} {tensors} {buffers} {sorted(map(str, tied))})"


def _settings_of(module: nn.Module, path: tuple[int, ...]) -> str:
    """What a module is beside its children and tensors: its class, its attributes, its own forward."""
    hidden = set(nn.Module().__dict__)
    if isinstance(module, nn.RNNBase):
        hidden |= {"_flat_weights", "_flat_weight_refs"}  # its parameters once more
    plain = {name: value for name, value in vars(module).items() if name not in hidden}
    hooks = [getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks") if getattr(module, name)]
    return f"{_of_class(type(module), path)} {_of_mapping(plain, path)} {_describe(hooks, path) if hooks else ''}"


def _of_class(kind: type, path: tuple[int, ...]) -> str:
    """A library's class by its name (versions are part of a run's identity), a user's with its methods and values."""
    if _of_library(kind):
        return _name(kind)
    own = {name: value for name, value in vars(kind).items() if _written(name, value)}
    if issubclass(kind, enum.Enum):  # whose members refer to the class, and stand in several tables of it
        members = {name: member.value for name, member in kind.__members__.items()}
        own = {name: value for name, value in own.items() if isinstance(value, _CODE)} | members
    others = [base for base in kind.__bases__ if base is not object]
    return f"{_name(kind)}({_of_sequence(others, (*path, id(kind)))} {_of_mapping(own, (*path, id(kind)))})"


_CODE = types.FunctionType | staticmethod | classmethod | property


def _written(name: str, value: Any) -> bool:
    """Whether a value of a class was written by its author: not its name or documentation, nor a slot."""
    if isinstance(value, _CODE):
        return True
    slot = hasattr(type(value), "__set__") and not hasattr(value, "__dict__")
    return not (slot or name == "_abc_impl" or (name.startswith("__") and name.endswith("__")))


def _of_library(thing: Any) -> bool:
    """Whether it comes from an installed package, ours or Python itself."""
    name = getattr(thing, "__module__", None)
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if file is None:  # built in, or typed at a prompt
        return name in sys.builtin_module_names
    return of_library_file(file)


def _is_library(module: types.ModuleType) -> bool:
    """Whether a module is one of an installed package, ours or Python's own."""
    folders = list(getattr(module, "__path__", ()))  # all that a package without an __init__.py has
    file = getattr(module, "__file__", None) or (folders[0] if folders else None)
    if file is None:
        return module.__name__.partition(".")[0] in sys.stdlib_module_names
    return of_library_file(file)


def of_library_file(file: str) -> bool:
    """Whether a source file belongs to an installed package, to ours or to Python itself."""
    place = pathlib.Path(file).parts
    ours = pathlib.Path(__file__).parent.parts
    python = pathlib.Path(functools.__file__).parent.parts
    return "site-packages" in place or "dist-packages" in place or _begins(place, ours) or _begins(place, python)


def _begins(place: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return place[: len(folder)] == folder


def _of_function(function: types.FunctionType, path: tuple[int, ...]) -> str:
    """What it computes: code, constants, defaults, what its closure holds and the names of its module that it reads.

    Of another module that it reads, those attributes count whose names stand in its code.
    """
    if _of_library(function) and function.__closure__ is None and "<" not in function.__qualname__:
        return _name(function)
    names = _names(function.__code__)
    closure = [_cell(cell, names, path) for cell in function.__closure__ or ()]
    held = {name: function.__globals__[name] for name in names if name in function.__globals__}
    reads = sorted(f"{_describe(name, ())}: {_read(value, names, path)}" for name, value in held.items())
    settings = _of_mapping(function.__kwdefaults__ or {}, path)
    defaults = _of_sequence(function.__defaults__ or (), path)
    code = _of_code(function.__code__, path)
    return f"function({code} {defaults} {settings} {closure} {{{', '.join(reads)}}})"


def _read(value: Any, names: Set[str], path: tuple[int, ...], through: tuple[types.ModuleType, ...] = ()) -> str:
    """Something that code reads; of a user's module what these names name in it. `through` are modules on the way."""
    if not isinstance(value, types.ModuleType) or value in through or _is_library(value):
        return _describe(value, path)
    held = {name: each for name, each in vars(value).items() if name in names and not name.startswith("__")}
    inside = sorted(f"{name}: {_read(each, names, path, (*through, value))}" for name, each in held.items())
    return f"module {value.__name__} {{{', '.join(inside)}}}"


def _cell(cell: types.CellType, names: Set[str], path: tuple[int, ...]) -> str:
    try:
        return _read(cell.cell_contents, names, path)
    except ValueError:  # not filled yet
        return "<empty>"


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function reads, those of its inner functions too."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner)) if inner else set(code.co_names)


def _of_code(code: types.CodeType, path: tuple[int, ...]) -> str:
    constants = _of_sequence(code.co_consts, path)
    return f"code({_hash(code.co_code)} {code.co_names} {code.co_varnames[: code.co_argcount]} {constants})"


def _of_object(thing: Any, path: tuple[int, ...]) -> str:
    """Any other object: its class and what it holds, as pickle would take it apart."""
    if isinstance(thing, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        return _name(thing)
    try:
        state = thing.__getstate__() if hasattr(thing, "__getstate__") else vars(thing)
    except Exception:
        state = vars(thing) if hasattr(thing, "__dict__") else None
    if state is None and not _of_library(type(thing)):
        state = {}  # an object without content, e.g. a class with a __call__ only
    if state is None:
        text = repr(thing)
        if " at 0x" in text:
            raise UserError(
                f"{_name(type(thing))} cannot be told from another by its content: give its class a method "
                "__fingerprint__ that returns a name or the values that matter."
            )
        state = text
    return f"{_of_class(type(thing), path)}({_describe(state, path)})"


_KINDS: tuple[tuple[Any, Callable[[Any, tuple[int, ...]], str]], ...] = (
    (np.ndarray, _of_array),
    (Tensor, _of_tensor),
    (torch.Generator, lambda each, path: f"generator({each.device} {_of_tensor(each.get_state(), path)})"),
    (nn.Module, _of_module),
    (enum.Enum, lambda each, path: f"{_name(type(each))}.{each.name}"),
    (np.generic | np.dtype | torch.dtype | torch.device | torch.Size | range | pathlib.PurePath, lambda e, p: repr(e)),
    (types.FunctionType, _of_function),
    (types.MethodType, lambda each, path: f"{_describe(each.__func__, path)} of {_describe(each.__self__, path)}"),
    (functools.partial, lambda e, path: f"partial({_of_sequence([e.func, e.args, e.keywords], path)})"),
    (types.CodeType, _of_code),
    (types.ModuleType, lambda each, path: f"module {each.__name__}"),
    (logging.Logger, lambda each, path: f"logger {each.name}"),
    (type(threading.Lock()) | type(threading.RLock()), lambda each, path: "lock"),
    (functools.cached_property, lambda each, path: _describe(each.func, path)),
    (staticmethod | classmethod, lambda each, path: _describe(each.__func__, path)),
    (property, lambda each, path: _of_sequence([each.fget, each.fset], path)),
    (Mapping, _of_mapping),
    (list | tuple, _of_sequence),
    (Set, _of_set),
)
