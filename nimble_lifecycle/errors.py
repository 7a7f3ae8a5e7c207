"""Every error this package raises or understands, free of FastMCP.

    NimbleError
    ├── ConfigurationError            the author's or operator's to mend, before anything runs
    │   ├── HandlerError              a lifecycle handler that no host could call
    │   ├── ForbiddenVariable         the server was given a credential it must not have
    │   └── TargetError               TARGET cannot be imported or is not what it should be
    ├── WorkspaceUnknown              no trusted source names the workspace of a call
    ├── StoreError                    the database
    │   ├── StoreUnavailable          it cannot be reached, or not in time
    │   ├── SchemaMissing             it has no tables of ours
    │   ├── SchemaOutdated            its tables are older than this package
    │   └── SchemaTooNew              its tables are newer than this package can live with
    ├── ForeignDatabase               the database belongs to another deployment
    ├── RekeyNeeded                   a workspace is known without the tenant its host now names
    ├── VerbRefused                   an operator's command that would break a rule
    ├── SweepBusy                     another sweep of the kind is under way
    ├── SharedResource                two rows were given one resource
    ├── NotConnected                  the test kit's host cannot use a server
    │   └── EraNotSpoken              it answers in the other era of the protocol only
    └── VendorError                   what an adapter says about one call
        ├── TemporaryError            certainly not applied; try again later
        ├── PermanentError            certainly not applied; will not improve by itself
        ├── NameConflict              the name is taken by something that is not ours
        ├── Gone                      there is nothing (left) to act on
        ├── UnknownOutcome            it may or may not have been applied
        ├── CredentialError           the vendor refuses the credential
        ├── RateLimited               the vendor asks for patience
        └── Unavailable               the vendor as a whole is down; certainly not applied

`NotReady`, which ordinary tools raise, is also the `ToolError` of its framework and lives in
`nimble_lifecycle.server` and `nimble_lifecycle.sdk`. No message carries a secret, a DSN or a stack.
"""


class NimbleError(Exception):
    """Base of every error of this package; catch it to catch them all."""


class ConfigurationError(NimbleError):
    """Something is set up wrong; the message names it and says what to change."""


class HandlerError(ConfigurationError):
    """A lifecycle handler that no host could call.

    Change the function, or the clashing tool, that the message names.
    """


class ForbiddenVariable(ConfigurationError):
    """The server's environment has a variable that only the worker may have.

    Unset it for the server; the message names the variable, never its value.
    """


class TargetError(ConfigurationError):
    """TARGET cannot be imported, or is not the kind of object the command needs."""


class WorkspaceUnknown(NimbleError):
    """No trusted source names the workspace of this call, or two of them disagree.

    The message says which sources were looked at. Nothing was written.
    """


class StoreError(NimbleError):
    """The database did not do what was asked; nothing of the call was recorded."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or did not answer in time. Call again."""


class SchemaMissing(StoreError):
    """The database has no tables of ours. Run `nimble-reconcile migrate`."""


class SchemaOutdated(StoreError):
    """The tables are older than this package. Run `nimble-reconcile migrate`."""


class SchemaTooNew(StoreError):
    """The tables were migrated past what this version can live with. Upgrade nimble-lifecycle."""


class ForeignDatabase(NimbleError):
    """The database belongs to another deployment, or is a copy of one; nothing was claimed.

    Run `nimble-reconcile claim-database`, with `--moved` where it is the same one, with `--copy`
    where it is a copy.
    """


class RekeyNeeded(NimbleError):
    """The host began to name tenants, and the workspace has a row that names none.

    Nothing was recorded. Run `nimble-reconcile rekey`, which moves the rows.
    """


class VerbRefused(NimbleError):
    """An operator's command would break a rule; the message says which. Nothing was changed."""


class SweepBusy(NimbleError):
    """Another sweep of the kind is under way, or took over from this one. Sweep again later."""


class SharedResource(NimbleError):
    """Two rows were given the same external id. The adapter must give each tenancy its own."""


class NotConnected(NimbleError):
    """The host of the test kit cannot reach a server, or finds nothing there to call.

    The message says what the server did instead of answering.
    """


class EraNotSpoken(NotConnected):
    """The server answers, but only in the other era of the protocol. Choose that `era`."""


class VendorError(NimbleError):
    """Base of what an adapter raises to say how a call ended.

    Anything else an adapter raises counts as an unknown outcome from `provision` and `release`, and
    as temporary from a read.
    """


class TemporaryError(VendorError):
    """Certainly not applied; the worker tries again.

    `delay` is in seconds and overrides the worker's back-off; None leaves it to the worker.
    """

    def __init__(self, message: str = "", *, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class PermanentError(VendorError):
    """Certainly not applied, and trying again will not help: the row is stalled.

    `reason` is a stable CamelCase word shown in `status`; changed params or an operator's `retry`
    start over.
    """

    def __init__(self, message: str = "", *, reason: str = "Rejected") -> None:
        super().__init__(message)
        self.reason = reason


class NameConflict(VendorError):
    """Something that does not carry our mark has the name; it is never adopted nor changed."""


class Gone(VendorError):
    """There is nothing at the vendor to act on; for a release that is success."""


class UnknownOutcome(VendorError):
    """The call may or may not have been applied: a time-out, a lost connection, 5xx on a write."""


class CredentialError(VendorError):
    """The vendor refuses the credential: revoked, expired, a missing right. Not applied."""


class RateLimited(VendorError):
    """The vendor refuses further calls for `after` seconds (None: not said). Not applied."""

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unavailable(VendorError):
    """The vendor as a whole is down (refused connection, maintenance). Certainly not applied.

    `after` is in seconds; None where the vendor did not say.
    """

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
