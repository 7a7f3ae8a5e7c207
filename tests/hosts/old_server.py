"""A server of the handshake era only, without any library: JSON lines over stdio.

The first argument, if any, is the event that both its tools are marked for.
"""

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {}}


def tool(name, event):
    marked = {} if event is None else {"_meta": {"ai.nimblebrain/lifecycle": {"event": event}}}
    return {"name": name, "inputSchema": SCHEMA, **marked}


def answer(method, params):
    if method == "initialize":
        capabilities = {"tools": {}, "extensions": {"ai.nimblebrain/lifecycle": {}}}
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "serverInfo": {"name": "old", "version": "1"},
        }
    if method == "tools/list":
        twice = sys.argv[1] if len(sys.argv) > 1 else None
        return {"tools": [tool("up", twice or "ready"), tool("down", twice or "removing")]}
    if method == "tools/call":
        said = {**params, "workspace": os.environ.get("NB_WORKSPACE_ID")}
        return {"content": [{"type": "text", "text": json.dumps(said, sort_keys=True)}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = answer(message["method"], message.get("params"))
    error = {"code": -32601, "message": "no such method"}
    outcome = {"error": error} if result is None else {"result": result}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}) + "\n")
    sys.stdout.flush()
