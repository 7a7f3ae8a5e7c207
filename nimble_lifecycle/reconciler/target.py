"""Finds the adapter that TARGET names."""

import inspect
import math
import sys
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import redirect_stdout
from datetime import timedelta

from pydantic import BaseModel

from nimble_lifecycle.errors import NimbleError, TargetError
from nimble_lifecycle.protocol import check_kind
from nimble_lifecycle.reconciler.listing import Source
from nimble_lifecycle.reconciler.redact import described, redacted
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.settings import LONGEST
from nimble_lifecycle.target import load_target


def load_vendor(target: str) -> Vendor:
    """Import `module:attr` or `file.py:attr` and give a ready adapter.

    `attr` is a `Vendor` class, which is called without arguments, or an instance. What the import
    prints goes to stderr. Raises TargetError in one line for whatever is wrong with it.
    """
    with redirect_stdout(sys.stderr):
        try:
            found = load_target(target, fits=_is_adapter)
        except TargetError as error:
            raise TargetError(redacted(str(error))) from error
        vendor = _instance(target, found)
    _check(target, vendor)
    return vendor


def load_installations(target: str) -> Source:
    """Import what lists installations: something to call, or an iterator that is used once.

    Raises TargetError in one line for whatever is wrong with it.
    """
    with redirect_stdout(sys.stderr):
        try:
            found = load_target(target)
        except TargetError as error:
            raise TargetError(redacted(str(error))) from error
    if callable(found):
        return found
    if isinstance(found, (AsyncIterable, Iterable)) and not isinstance(found, str):
        return lambda: found
    raise TargetError(f"{target} is no iterator of (tenant id, workspace id), and gives none")


def _instance(target: str, found: object) -> Vendor:
    if isinstance(found, Vendor):
        return found
    if not (isinstance(found, type) and issubclass(found, Vendor)):
        raise TargetError(f"{target} is no nimble_lifecycle.reconciler.Vendor")
    try:
        return found()
    except NimbleError as error:
        raise TargetError(f"{target}: {redacted(str(error))}") from error
    except (Exception, SystemExit) as error:
        begun = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        what = "raised when it was made" if begun else "cannot be made without arguments"
        raise TargetError(f"{target} {what}: {described(error)}") from error


def _is_adapter(each: object) -> bool:
    """Whether it is an adapter that its module brings, or the class of one."""
    own = isinstance(each, type) and issubclass(each, Vendor) and each is not Vendor
    return own or isinstance(each, Vendor)


def _check(target: str, vendor: Vendor) -> None:
    """Refuse at start what would only be found out in the middle of a vendor call."""
    for wrong, what in _findings(vendor):
        if wrong:
            raise TargetError(f"{target} {what}")


def _findings(vendor: Vendor) -> Iterator[tuple[bool, str]]:
    kind: object = getattr(vendor, "kind", None)
    yield kind is None, "must name its kind, the name of the server it serves"
    try:
        check_kind(kind)
    except (ValueError, TypeError) as error:
        yield True, f"must name its kind, the name of the server it serves: {error}"
    for method in ("provision", "release"):
        yield not vendor.implements(method), f"lacks the method {method}"
    for method, given in _METHODS.items():
        wrong = vendor.implements(method) and not _takes(getattr(vendor, method), given)
        yield wrong, f"cannot be called: its {method} must take {given or 'nothing'}"
    yield not _is_time(vendor.time_limit, above=True), "needs a time_limit above zero (timedelta)"
    yield not _is_time(vendor.lag), "needs a lag of zero or more (timedelta)"
    repeats = vendor.repeatable is None or _is_time(vendor.repeatable, above=True)
    yield not repeats, "needs a repeatable above zero (timedelta), or None"
    slots = vendor.max_concurrency is None or _is_count(vendor.max_concurrency)
    yield not slots, "needs a max_concurrency of one or more (int), or None"
    rated = vendor.max_rate is None or _is_rate(vendor.max_rate)
    yield (
        not rated,
        "needs a max_rate above zero (calls a second, one in a hundred years at least), or None",
    )
    model: object = vendor.params_model
    models = model is None or (isinstance(model, type) and issubclass(model, BaseModel))
    yield not models, "needs a pydantic model as params_model, or None"
    yield vendor.on_release not in ("delete", "keep"), "needs on_release 'delete' or 'keep'"


_METHODS = {
    **dict.fromkeys(("provision", "release", "poll", "find"), "the tenancy"),
    "inventory": "",
}
"""What the worker calls each method with."""


def _takes(method: object, given: str) -> bool:
    if not callable(method):
        return False
    try:
        inspect.signature(method, follow_wrapped=False).bind(*[given] if given else [])
    except TypeError:
        return False
    except ValueError:  # it does not say what it takes
        return True
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_rate(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 1 / LONGEST <= value < math.inf


def _is_time(value: object, *, above: bool = False) -> bool:
    zero = timedelta(0)
    return isinstance(value, timedelta) and (value > zero or (value == zero and not above))
