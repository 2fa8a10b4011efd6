"""Schultz 2019, Learning private CNN language models."""
