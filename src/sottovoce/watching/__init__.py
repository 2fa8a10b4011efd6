"""A page that shows runs as they go: reads their files, writes nothing."""
