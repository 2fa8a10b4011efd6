"""What each command does, callable from Python: one file a verb, under the name that it has in `cli/`.

`sotto plan` has no file here: `planning.plan` does all of it. `sotto keyboard` and `watch` are in `web/`.
"""
