"""The keyboard page, and the model exported for it."""
