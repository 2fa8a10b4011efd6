"""What the local pages share: a server for this machine alone, headers that keep others out, one look."""
