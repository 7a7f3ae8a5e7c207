"""TARGET: what it may name, and one sentence for everything else."""

import sys
from pathlib import Path

import pytest

from nimble_lifecycle.errors import TargetError
from nimble_lifecycle.reconciler.target import load_vendor

GOOD = """
from datetime import timedelta
from abc import ABC, abstractmethod
from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.reconciler import Released, Vendor

class Good(Vendor):
    kind = "good"
    async def provision(self, tenancy): ...
    def release(self, tenancy): return Released()

class Inner:
    Nested = Good

instance = Good()
instance.marked = True

class LacksBoth(Vendor):
    kind = "k"

class LacksRelease(Vendor):
    kind = "k"
    def provision(self, tenancy): ...

class OfEveryKind(Good):
    kind = "*"


class Kindless(Good):
    kind = " "

class NoLimit(Good):
    time_limit = timedelta(0)

class WrongLag(Good):
    lag = 10

class WrongRepeatable(Good):
    repeatable = timedelta(0)

class NoConcurrency(Good):
    max_concurrency = 0

class HalfConcurrency(Good):
    max_concurrency = 2.5

class NoRate(Good):
    max_rate = 0.0

class EndlessRate(Good):
    max_rate = float("inf")

class WordyRate(Good):
    max_rate = "5/s"

class WrongModel(Good):
    params_model = dict

class TakesNothing(Good):
    async def provision(self): ...

class TakesMore(Good):
    def release(self, tenancy, force): ...

class NoFind(Good):
    find = None

class TakesTenancy(Good):
    async def inventory(self, tenancy):
        yield

class WrongRelease(Good):
    on_release = "forget"

class Abstract(Good, ABC):
    @abstractmethod
    def extra(self): ...

class Raises(Good):
    def __init__(self):
        raise KeyError("ACME_ADMIN_TOKEN")

class Mistypes(Good):
    def __init__(self):
        len(5)

class Leaks(Good):
    def __init__(self):
        raise ValueError("bad url https://admin:hunter2@acme.test")

class Says(Good):
    def __init__(self):
        raise ConfigurationError("set ACME_ADMIN_TOKEN")

class Exits(Good):
    def __init__(self):
        raise SystemExit(3)

class Wants(Good):
    def __init__(self, token): ...

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "adapters.py": GOOD,
        "broken_syntax.py": "def x(:\n",
        "raises_on_import.py": "print('talk')\nraise RuntimeError('token=hunter2\\nsecond line')\n",
        "exits_on_import.py": "import sys\nsys.exit(9)\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in files:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)


@pytest.mark.parametrize("place", ["adapters", "adapters.py"])
@pytest.mark.parametrize("attribute", ["Good", "Inner.Nested", "instance"])
def test_a_class_or_an_instance_is_found_in_the_working_directory(
    place: str, attribute: str
) -> None:
    vendor = load_vendor(f"{place}:{attribute}")
    assert vendor.kind == "good"
    assert hasattr(vendor, "marked") == (attribute == "instance")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("adapters", "write module:attr or file.py:attr"),
        (":Good", "write module:attr or file.py:attr"),
        ("adapters:", "write module:attr or file.py:attr"),
        ("nowhere:Good", "cannot import nowhere: ModuleNotFoundError"),
        ("broken_syntax:Good", "cannot import broken_syntax: SyntaxError"),
        ("raises_on_import:Good", "cannot import raises_on_import: RuntimeError: token=***"),
        ("raises_on_import.py:Good", "cannot import raises_on_import.py: RuntimeError: token=***"),
        ("exits_on_import:Good", "cannot import exits_on_import: SystemExit: 9"),
        ("adapters:Bad", "has no attribute 'Bad': did you mean Good or instance or LacksBoth"),
        ("adapters:WrongLagg", "has no attribute 'WrongLagg': did you mean WrongLag"),
        ("adapters:number", "is no nimble_lifecycle.reconciler.Vendor"),
        ("adapters:Inner", "is no nimble_lifecycle.reconciler.Vendor"),
        ("adapters:LacksBoth", "lacks the method provision"),
        ("adapters:LacksRelease", "lacks the method release"),
        ("adapters:Kindless", "must name its kind"),
        ("adapters:OfEveryKind", "the kind cannot be '*'"),
        ("adapters:TakesNothing", "its provision must take the tenancy"),
        ("adapters:TakesMore", "its release must take the tenancy"),
        ("adapters:NoFind", "its find must take the tenancy"),
        ("adapters:TakesTenancy", "its inventory must take nothing"),
        ("adapters:NoLimit", "time_limit above zero"),
        ("adapters:WrongLag", "lag of zero or more"),
        ("adapters:WrongRepeatable", "repeatable above zero"),
        ("adapters:NoConcurrency", "max_concurrency of one or more"),
        ("adapters:HalfConcurrency", "max_concurrency of one or more"),
        ("adapters:NoRate", "max_rate above zero"),
        ("adapters:EndlessRate", "max_rate above zero"),
        ("adapters:WordyRate", "max_rate above zero"),
        ("adapters:WrongModel", "pydantic model as params_model"),
        ("adapters:WrongRelease", "on_release 'delete' or 'keep'"),
        ("adapters:Abstract", "cannot be made without arguments: TypeError"),
        ("adapters:Wants", "cannot be made without arguments: TypeError"),
        ("adapters:Raises", "Raises raised when it was made: KeyError: 'ACME_ADMIN_TOKEN'"),
        ("adapters:Mistypes", "Mistypes raised when it was made: TypeError"),
        ("adapters:Leaks", "ValueError: bad url https://***@acme.test"),
        ("adapters:Says", "adapters:Says: set ACME_ADMIN_TOKEN"),
        ("adapters:Exits", "Exits raised when it was made: SystemExit"),
    ],
)
def test_anything_else_is_one_sentence(
    target: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TargetError) as caught:
        load_vendor(target)
    said = str(caught.value)
    assert words in said
    assert "\n" not in said
    assert "hunter2" not in said
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("place", ["chatty", "chatty.py"])
def test_what_a_target_prints_goes_to_stderr(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = GOOD.replace('kind = "good"', 'kind = "good"\n    def __init__(self): print("made")', 1)
    (tmp_path / "chatty.py").write_text(f"print('imported'){made}")
    load_vendor(f"{place}:Good")
    out, err = capsys.readouterr()
    assert (out, err.split()) == ("", ["imported", "made", "made"])
