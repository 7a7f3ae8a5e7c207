"""Build time: write the lifecycle block into a manifest, or fail the build on a wrong one.

`cli` is the command `nimble-manifest` and `hatch` a build hook; both `check` a `document` against
what a host would read of the `target`, its `block`. `json_text` and `yaml_text` change text in
place. Nothing here runs the server, opens a database or uses the network.
"""
