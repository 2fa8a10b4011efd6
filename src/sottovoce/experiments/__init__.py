"""Runs that answer a question about the system itself."""
