"""What each command does, callable from Python: one file a verb."""
