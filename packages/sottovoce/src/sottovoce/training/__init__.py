"""Algorithm 1: the round, the server step, the simulation of many users."""
