"""A person types: the released model as ONNX, and a page where it suggests words."""
