"""TARGET of the command lines: which object it names, or else one line, and where it prints."""

import json
import sys
from pathlib import Path

import pytest

from nimble_lifecycle.errors import TargetError
from nimble_lifecycle.target import load_target

THING = """
from beside import word

class Outer:
    inner = word

class Odd:
    @property
    def broken(self):
        raise ValueError("not\\nnow")

odd = Odd()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_imports: None) -> Path:
    files = {
        "thing.py": THING,
        "beside.py": "word = 'found'",
        "deep/thing.py": "from neighbour import word",
        "deep/neighbour.py": "word = 'deep'",
        "raises.py": "raise RuntimeError('first\\nsecond')",
        "silent.py": "raise ValueError",
        "exits.py": "import sys; sys.exit('bye')",
        "no_python.py": "def",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("place", ["thing", "thing.py", "./thing.py"])
def test_a_module_or_a_file_of_the_working_directory_is_found(place: str) -> None:
    assert load_target(f"{place}:Outer.inner") == "found"


def test_a_file_elsewhere_finds_its_neighbours(folder: Path) -> None:
    assert load_target("deep/thing.py:word") == "deep"
    assert load_target(f"{folder}/deep/thing.py:word") == "deep"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("thing", "'thing' names no object: write module:attr or file.py:attr"),
        (":word", "':word' names no object"),
        ("thing:", "'thing:' names no object"),
        ("nowhere:x", "cannot import nowhere: ModuleNotFoundError"),
        ("nowhere.py:x", "cannot import nowhere.py: FileNotFoundError"),
        ("raises:x", "cannot import raises: RuntimeError: first second"),
        ("silent.py:x", "cannot import silent.py: ValueError"),
        ("exits.py:x", "cannot import exits.py: SystemExit: bye"),
        ("no_python:x", "cannot import no_python: SyntaxError"),
        ("thing:Outer.other", "thing has no attribute 'Outer.other': name one that it has"),
        ("thing:outer", "thing has no attribute 'outer': did you mean Outer?"),
        ("thing:zzz", "thing has no attribute 'zzz': name one that it has"),
        ("thing:odd.broken", "thing cannot give 'odd.broken': ValueError: not now"),
    ],
)
def test_anything_else_is_one_line(target: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["nowhere:x", "nowhere.at.all:x", "thing.of:x"])
def test_where_a_module_was_looked_for_is_told(target: str, folder: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    assert f"; looked in {folder} and on sys.path" in str(caught.value)


def test_a_module_that_lacks_another_one_is_there_itself(folder: Path) -> None:
    (folder / "lacks.py").write_text("import nowhere")
    with pytest.raises(TargetError) as caught:
        load_target("lacks:x")
    assert "No module named 'nowhere'" in str(caught.value)
    assert "looked in" not in str(caught.value)


def test_what_fits_is_proposed_where_no_name_is_alike() -> None:
    with pytest.raises(TargetError, match="did you mean Outer or Odd\\?"):
        load_target("thing:zzz", fits=lambda each: isinstance(each, type))


@pytest.fixture
def package(folder: Path) -> Path:
    """Make a project whose package is in `src`, below which nothing is a script."""
    files = {
        "__init__.py": "",
        "models.py": "word = 'found'",
        "absolute.py": "from pkgx.models import word",
        "relative.py": "from .models import word; name = __name__",
        "sibling.py": "from models import word",
        "early.py": "import colorsys; from .models import word; name = colorsys.__file__",
        "types.py": "raise RuntimeError('this is not the types of Python')",
        "deep/__init__.py": "word = 'deep'; name = __name__",
        "deep/down.py": "from ..models import word; name = __name__",
    }
    for name, text in files.items():
        path = folder / "src" / "pkgx" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("module", ["absolute", "relative", "deep.down"])
def test_a_package_in_src_is_found_by_module_and_by_file(package: Path, module: str) -> None:
    assert load_target(f"pkgx.{module}:word") == "found"
    assert load_target(f"src/pkgx/{module.replace('.', '/')}.py:word") == "found"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("relative.py", "pkgx.relative"),
        ("deep/down.py", "pkgx.deep.down"),
        ("deep/__init__.py", "pkgx.deep"),
    ],
)
def test_a_file_of_a_package_is_imported_under_its_dotted_name(
    package: Path, file: str, name: str
) -> None:
    assert load_target(f"src/pkgx/{file}:name") == name


def test_no_file_of_a_package_hides_a_module_of_python(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "src" / "pkgx" / "colorsys.py").write_text("")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert "pkgx" not in str(load_target("src/pkgx/early.py:name"))


def test_what_a_script_that_fails_was_called_is_as_before(folder: Path) -> None:
    (folder / "json.py").write_text("raise ValueError('no')")
    with pytest.raises(TargetError, match="ValueError: no"):
        load_target("json.py:x")
    assert sys.modules["json"] is json


def test_a_file_of_a_package_still_finds_its_neighbours_as_a_script_does(package: Path) -> None:
    assert load_target("src/pkgx/sibling.py:word") == "found"


def test_a_file_of_a_package_that_another_one_hides_is_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = package / "other" / "pkgx"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "relative.py").write_text("word = 'hidden'")
    monkeypatch.setattr(sys, "path", [str(other.parent), str(package / "src"), *sys.path])
    with pytest.raises(TargetError) as caught:
        load_target("src/pkgx/relative.py:word")
    assert f"pkgx.relative is {other}/relative.py: rename one of the two" in str(caught.value)


@pytest.mark.parametrize("directory", ["pytest", "not-a-name"])
def test_a_file_whose_directory_cannot_be_a_package_is_a_script(
    folder: Path, directory: str
) -> None:
    (folder / directory).mkdir()
    for name, text in [("__init__", ""), ("own", "from side import word"), ("side", "word = 1")]:
        (folder / directory / f"{name}.py").write_text(text)
    assert load_target(f"{directory}/own.py:word") == 1
