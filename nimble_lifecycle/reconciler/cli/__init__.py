"""`nimble-reconcile`: run the worker, look at rows and act on them, sweep, migrate the database.

Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 every slot is held
by a call that does not end, 4 the database belongs to another deployment, 5 (`status` and
`sweep` with `--exit-code`) something needs a person.
"""

import logging
import sys
from collections.abc import Callable, Sequence

from cyclopts import CycloptsError
from pydantic import ValidationError

from nimble_lifecycle.errors import ConfigurationError, ForeignDatabase, NimbleError
from nimble_lifecycle.reconciler.cli.app import DONE, FAILED, FOREIGN_DATABASE, WRONG_USE, app, say
from nimble_lifecycle.reconciler.cli.database import claim_database, grants, migrate, rekey
from nimble_lifecycle.reconciler.cli.operate import (
    abandon,
    adopt,
    approve,
    pause,
    release,
    resume,
    retry,
    undo,
)
from nimble_lifecycle.reconciler.cli.run import run
from nimble_lifecycle.reconciler.cli.status import journal, status
from nimble_lifecycle.reconciler.cli.sweep import sweep
from nimble_lifecycle.reconciler.redact import described, redacted
from nimble_lifecycle.stdout import data_to_stdout

for _command in (run, status, journal, sweep, migrate, grants, claim_database, rekey):
    app.command(_command)
for _verb in (retry, release, undo, adopt, abandon, pause, resume, approve):
    app.command(_verb, group="What an operator does")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("nimble_reconcile").setLevel(logging.INFO)
    with data_to_stdout():
        code = _guarded(lambda: app(arguments, exit_on_error=False, print_error=False))
    sys.exit(code)


def _guarded(command: Callable[[], int | None]) -> int:
    try:
        return command() or DONE
    except CycloptsError as error:
        # Its word for arguments would read as a name of secrets, and hide them.
        return _failed(str(error).replace("Tokens", "arguments"), WRONG_USE)
    except ValidationError as error:
        return _failed("; ".join(_named_settings(error)), WRONG_USE)
    except ForeignDatabase as error:
        return _failed(str(error), FOREIGN_DATABASE)
    except ConfigurationError as error:
        return _failed(str(error), WRONG_USE)
    except NimbleError as error:
        return _failed(str(error), FAILED)
    except BrokenPipeError:  # no failure: `data_to_stdout` ends the process quietly
        raise
    except OSError as error:
        return _failed(described(error), FAILED)
    except KeyboardInterrupt:
        return _failed("interrupted", FAILED)


def _named_settings(error: ValidationError) -> list[str]:
    """Say what is wrong with which setting, by both its names and without its value."""
    return [
        f"--{name.replace('_', '-')} (NIMBLE_{name.upper()}): {found['msg']}"
        for found in error.errors(include_url=False, include_input=False)
        for name in [str(found["loc"][0])]
    ]


def _failed(text: str, code: int) -> int:
    say(redacted(" ".join(text.split())))
    return code
