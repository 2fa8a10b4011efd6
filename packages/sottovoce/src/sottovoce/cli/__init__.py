"""The `sotto` command: parse, call, print."""
