"""Popov et al. 2018, Differentially private distributed learning for language modeling tasks."""
