"""How leaky a model is: lower bounds, estimates and attacks, to compare with what is proved."""
