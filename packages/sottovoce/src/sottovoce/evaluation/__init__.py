"""How good a model is for people it has never seen."""
