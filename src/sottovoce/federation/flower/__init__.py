"""Flower as the transport: the only room that imports flwr."""
