"""Build time: write the lifecycle block into a manifest, or fail the build on a wrong one.

`cli` is the command `nimble-manifest`, `target` finds the server, `block` says what a host would
read of it, `document` brings a manifest into line and `edit` changes JSON text in place. Nothing
here runs the server, opens a database or uses the network.
"""
