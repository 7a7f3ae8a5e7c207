"""Commands about the database itself."""

from nimble_lifecycle.reconciler.cli.app import DONE, Database, opened, say


def migrate(*, database_url: Database = None) -> int:
    """Make or upgrade the tables; any number of processes may do so at once."""
    with opened(database_url) as store:
        store.migrate()
        store.open()
        say(f"{store.location} is up to date")
    return DONE
