"""The tables and figures of three papers, run again: one folder a paper."""
