"""The mathematics of the guarantee. Files here do not import one another; `mechanism` alone composes them."""
