"""How leaky a model is, measured: estimates beside what is proved."""
