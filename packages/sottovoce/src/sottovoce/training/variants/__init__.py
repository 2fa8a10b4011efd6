"""Ways to train that are not Algorithm 1: central SGD, and rounds of examples."""
