"""Flower as the transport. No other folder imports flwr; `docs/decisions` says which of its private parts are used."""
