"""Language models as pytrees, without a batch axis."""
