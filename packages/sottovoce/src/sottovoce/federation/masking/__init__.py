"""Sums that the server cannot open: secure aggregation of whole numbers (Bonawitz et al. 2017, Bell et al. 2020)."""
