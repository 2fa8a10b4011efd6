"""Words to scores: language models as pytrees, without a batch axis."""
