"""Acme's adapter keeps every promise the suite knows, against Acme's own HTTP service."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from acme_process import ADMIN_TOKEN, Acme
from sandbox import AcmeSandbox
from vendor import AcmeVendor

from nimble_lifecycle.testing import Verdict, check_vendor
from nimble_lifecycle.testing.cli import main


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, keys: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ACME_ADMIN_TOKEN", ADMIN_TOKEN)
    monkeypatch.setenv("ACME_SECRETS_DIR", str(keys))
    return monkeypatch


class PromptVendor(AcmeVendor):
    """Acme's listing lags behind nothing here, and its operations are quick."""

    lag = timedelta(0)


def test_the_adapter_passes_every_check(
    steady_acme: Acme, environment: pytest.MonkeyPatch, keys: Path
) -> None:
    environment.setenv("ACME_URL", steady_acme.url)
    headers = {"Idempotency-Key": "somebody's"}
    body = {"name": "theirs", "owner": "somebody", "reference": "somebody's"}
    steady_acme.admin.post("/tenancies", json=body, headers=headers).raise_for_status()
    report = asyncio.run(
        check_vendor(
            PromptVendor,
            sandbox=AcmeSandbox(),
            params={"plan": "starter"},
            changed_params={"plan": "growth"},
        )
    )
    assert [str(each) for each in report.checks if each.verdict is not Verdict.OK] == []
    assert report.ok
    assert [shown["name"] for shown in steady_acme.tenancies()] == ["theirs"]
    assert list(keys.iterdir()) == []


@pytest.mark.slow  # waits for the adapter's lag
def test_the_adapter_as_it_is_passes_on_the_command_line(
    acme: Acme, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("ACME_URL", acme.url)
    with pytest.raises(SystemExit) as end:
        main(["check-vendor", "vendor:AcmeVendor", "--sandbox", "sandbox:AcmeSandbox"])
    assert end.value.code == 0
    assert ADMIN_TOKEN not in capsys.readouterr().out
    assert acme.tenancies() == []
