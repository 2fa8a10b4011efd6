"""What runs a paper's trials, keeps their results, judges its claims and draws its figures."""
