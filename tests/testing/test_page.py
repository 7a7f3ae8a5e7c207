"""The snippets of the page about `check-vendor` run, and its table names every check."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from nimble_lifecycle.testing.conformance.suite import FIRST, LAST, REST

PAGE = (Path(__file__).parents[2] / "docs" / "check-vendor.md").read_text()
VENDOR = """
from datetime import timedelta
from nimble_lifecycle.reconciler import External, Gone, Provisioned, Released, Vendor

BUCKETS = {}

class BucketVendor(Vendor):
    kind = "buckets"
    repeatable = timedelta(days=1)
    lag = timedelta(0)

    def __init__(self, url="", timeout=5.0): ...

    async def provision(self, tenancy):
        if tenancy.external_id not in (None, *BUCKETS):
            raise Gone
        BUCKETS.setdefault(tenancy.external_name, tenancy.idempotency_key)
        return Provisioned(tenancy.external_name)

    async def find(self, tenancy):
        name = tenancy.external_name
        return External(name, key=BUCKETS[name]) if name in BUCKETS else None

    async def release(self, tenancy):
        BUCKETS.pop(tenancy.external_id, None)
        return Released()
"""
USE = """
import asyncio
from nimble_lifecycle.testing import check_vendor
from sandbox import BUCKETS, BucketSandbox, BucketVendor
from test_vendor import test_the_adapter_keeps_its_promises

test_the_adapter_keeps_its_promises()
sandbox = BucketSandbox()
assert asyncio.run(sandbox.resources()) == []

async def opened():
    async with sandbox.at("http://127.0.0.1:1") as vendor:
        assert isinstance(vendor, BucketVendor)

asyncio.run(opened())
"""


def test_the_snippets_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "vendor.py").write_text(VENDOR)
    for token in MarkdownIt().parse(PAGE):
        if token.type == "fence" and token.info == "python":
            [name] = re.findall(r"\A# (\S+\.py)\n", token.content)
            (tmp_path / name).write_text(token.content)
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("check", [*FIRST, *REST, *LAST])
def test_the_page_says_what_a_check_means(check: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert any(f"`{check}`" in line.split("|")[1] for line in rows)
