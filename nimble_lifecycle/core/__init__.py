"""What a server does for its lifecycle, whichever framework serves it; free of FastMCP and MCP.

`nimble_lifecycle.server` is the adapter for FastMCP, `nimble_lifecycle.sdk` that for the official
SDK. Importing it opens nothing and loads no database library.
"""
