"""What is shown of rows."""

import pytest

from nimble_lifecycle.reconciler.tables import needs_person

ROW = {"phase": "ready", "reason": None, "due_at": None, "lease_owner": None}


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"phase": "stalled", "reason": "InvalidParams"}, True),
        ({"phase": "release_pending", "reason": "CreateOutcomeUnknown"}, True),
        ({"reason": "PlanUnknown"}, True),
        ({"reason": "BackingOff", "due_at": "2030-01-01T00:00:00+00:00"}, False),
        ({"reason": "PlanUnknown", "lease_owner": "host-1"}, False),
        ({"phase": "pending", "reason": "RateLimited"}, False),
    ],
)
def test_a_person_is_needed_where_the_worker_can_do_no_more(
    changes: dict[str, str], needed: bool
) -> None:
    assert needs_person({**ROW, **changes}) is needed
