"""A build hook for hatchling: a package whose manifest would be wrong is not built.

[build-system]
requires = ["hatchling", "nimble-lifecycle"]
build-backend = "hatchling.build"

[tool.hatch.build.hooks.nimble-manifest]
target = "acme_outreach/server.py:mcp"
manifest = "acme_outreach/manifest.json"
"""

from contextlib import chdir
from pathlib import Path

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from nimble_lifecycle.errors import ConfigurationError


class ManifestHook(BuildHookInterface[BuilderConfig]):
    """Writes the lifecycle block before the files of a build are collected.

    `target` and `manifest` are those of `nimble-manifest write`, relative to the project;
    `host-version` and `entry` likewise. With `check = true` the file is left alone, and a stale one
    fails the build. The server is imported, so what the project depends on is installed for the
    build.
    """

    PLUGIN_NAME = "nimble-manifest"

    def dependencies(self) -> list[str]:
        """Ask for what the project itself depends on."""
        return list(self.metadata.core.dependencies)

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Bring the manifest into line; raises ConfigurationError with the findings otherwise."""
        # FastMCP takes seconds to load, and hatchling loads the hooks of every package.
        from nimble_lifecycle.manifest.check import compare, repair  # noqa: PLC0415

        manifest = Path(self._setting("manifest") or "manifest.json")
        target = self._setting("target")
        if target is None:
            raise ConfigurationError("tool.hatch.build.hooks.nimble-manifest needs a target")
        host_version, entry = self._setting("host-version"), self._setting("entry")
        with chdir(self.root):
            found = compare(target, manifest, host_version, entry)
            stale = [edit.why for edit in found.edits] if self.config.get("check") else []
            findings = [*(finding.words for finding in found.refusals), *stale]
            if findings:
                again = f"; run {repair(target, manifest, host_version, entry)}" if stale else ""
                raise ConfigurationError(f"{manifest} is not right: {'; '.join(findings)}{again}")
            found.write()

    def _setting(self, name: str) -> str | None:
        value = self.config.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"tool.hatch.build.hooks.nimble-manifest.{name} must be text")
        return value


@hookimpl
def hatch_register_build_hook() -> type[ManifestHook]:
    """Tell hatchling of the hook; found by the entry point `hatch`."""
    return ManifestHook
