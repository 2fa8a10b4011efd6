"""Evidence: the privacy statement, figures, the report."""
