"""Finds the object that a command line names as its TARGET: `module:attr` or `file.py:attr`."""

import sys
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from nimble_lifecycle.errors import TargetError

CANDIDATES = 5
"""Names that are proposed at most."""


def load_target(target: str, *, fits: Callable[[object], bool] = lambda _: False) -> object:
    """Import the module of `target` and give the attribute it names (dots lead further in).

    Modules are looked up from the working directory and its `src` too. Whatever the code of the
    target raises, `sys.exit` included, becomes a `TargetError` of one line. Where there is no such
    attribute, it proposes those of a like name, or else those for which `fits` is true.
    """
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise TargetError(f"{target!r} names no object: write module:attr or file.py:attr")
    module = load_module(place)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        words = f"{place} has no attribute {attribute!r}: {_instead(module, attribute, fits)}"
        raise TargetError(words) from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"{place} cannot give {attribute!r}: {one_line(error)}") from error


def load_module(place: str) -> ModuleType:
    """Import the `module` or `file.py` of a target; raises `TargetError` in one line."""
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import(place)
    except (Exception, SystemExit) as error:  # the code of the target may raise anything
        looked = f"; looked in {Path.cwd()} and on sys.path" if _lacks(place, error) else ""
        raise TargetError(f"cannot import {place}: {one_line(error)}{looked}") from error


def one_line(error: BaseException) -> str:
    """Give the class of an error and its words, in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _import(name: str) -> ModuleType:
    _search_first(Path.cwd())
    top = name.partition(".")[0]
    try:
        found = find_spec(top)
    except ValueError:  # what is running now, say as a script
        found = None
    source = Path.cwd() / "src"
    if found is None and ((source / top).is_dir() or (source / f"{top}.py").is_file()):
        _search_first(source)
    return import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name, or as a module of its package where it needs that."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no such file in {Path.cwd()}")
    path = path.resolve()
    root = _root_of(path)
    parts = path.relative_to(root).with_suffix("").parts
    in_package = path.parent != root and not _is_taken(parts[0], root)
    if in_package and path.stem == "__init__":
        return _import_of_package(path, root, parts)
    before = set(sys.modules)
    try:
        return _import_script(path)
    except ImportError as error:
        # Only where it must be: a package's own code is loaded with it.
        if not in_package or not _needs_package(error, parts[0]):
            raise
    _forget_imports(path.parent, before)
    return _import_of_package(path, root, parts)


def _forget_imports(directory: Path, before: Collection[str]) -> None:
    """Undo that a directory was searched first: its own types.py is not Python's."""
    sys.path.remove(str(directory))
    for name in set(sys.modules).difference(before):
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == directory:
            del sys.modules[name]


def _needs_package(error: ImportError, package: str) -> bool:
    """Whether a file could not be imported by itself since it names its package."""
    relative = error.name is None and "relative import" in str(error)
    return relative or (error.name or "").partition(".")[0] == package


def _root_of(path: Path) -> Path:
    """Give the directory from which a file can be imported, above the packages it is in."""
    root = path.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root = root.parent
    return root


def _is_taken(package: str, root: Path) -> bool:
    """Whether another package of that name is loaded already, as a directory `mcp` would find."""
    loaded = sys.modules.get(package)
    if loaded is None:
        return False
    return Path(loaded.__file__ or "").resolve() != root / package / "__init__.py"


def _import_of_package(path: Path, root: Path, parts: Sequence[str]) -> ModuleType:
    """Import a file under its dotted name, so that it can say `from .models import ...`."""
    _search_first(root)
    sys.path.append(str(path.parent))  # last: a package's own types.py must not hide Python's
    name = ".".join(parts).removesuffix(".__init__")
    module = import_module(name)
    if Path(module.__file__ or "").resolve() != path:
        raise ImportError(f"{name} is {module.__file__}: rename one of the two")
    return module


def _import_script(path: Path) -> ModuleType:
    """Import a file under its own name, as if its directory were on the path."""
    _search_first(path.parent)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python source")
    module = module_from_spec(spec)
    earlier = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if earlier is None:
            sys.modules.pop(path.stem, None)
        else:
            sys.modules[path.stem] = earlier
        raise
    return module


def _lacks(place: str, error: BaseException) -> bool:
    """Whether it is the module itself that is not there, and not one that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{place}.".startswith(f"{missing}.")


def _instead(module: ModuleType, attribute: str, fits: Callable[[object], bool]) -> str:
    """Say which names are like the one that is missing, or else which would do."""
    names = [name for name in vars(module) if not name.startswith("_")]
    likely = get_close_matches(attribute, names) or [n for n in names if fits(vars(module)[n])]
    if not likely or attribute.partition(".")[0] in names:
        return "name one that it has"
    return f"did you mean {' or '.join(likely[:CANDIDATES])}?"


def _search_first(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
