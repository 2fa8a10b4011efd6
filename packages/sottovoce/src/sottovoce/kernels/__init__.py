"""Local training of many users at once, written out by hand where the general program is too slow."""
